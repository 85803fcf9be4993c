"""Run a Python program under a profiler: ``python [OPTION]... PROGRAM PROFILER OUTPUT (-c CODE | -m MODULE | SCRIPT) [ARGUMENT]...``

hpcrl copies this file, and runs the copy in the command's environment: it needs the standard library of Python 3.7 only. The
program sees its own arguments, its own ``sys.path``, and itself as ``__main__``. The profile is written when the program
ends: one that a signal kills, or that ends with ``os._exit``, leaves none.
"""

from __future__ import annotations


def _main() -> None:
    # All names are local, because the program gets the names of this module.
    import os
    import runpy
    import sys
    import zipfile
    from pathlib import Path
    from time import perf_counter
    from typing import Any

    profiler, output, words = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    main = sys.modules["__main__"].__dict__
    own = Path(main["__file__"]).resolve().parent
    is_first = sys.path[:1] not in ([], [""]) and Path(sys.path[0]).resolve() == own

    def look_first_in(place: str) -> None:
        if is_first:  # not with -P or -I
            sys.path[0] = place

    def nothing() -> None:
        pass

    begin: Any = nothing
    end: Any = nothing
    write: Any = nothing
    if profiler == "cprofile":
        import cProfile
        import marshal

        profile = cProfile.Profile()

        def write_stats() -> None:
            profile.create_stats()
            output.write_bytes(marshal.dumps(profile.stats, 4))

        begin, end, write = profile.enable, profile.disable, write_stats
    else:
        try:
            import memray
        except ImportError:
            output.with_name("missing").touch()
        else:
            tracker = memray.Tracker(str(output), file_format=memray.FileFormat.AGGREGATED_ALLOCATIONS)

            def write_stacks() -> None:
                lines = []
                reader = memray.FileReader(str(output))
                for record in reader.get_high_watermark_allocation_records(merge_threads=True):
                    frames = ["\0".join(map(str, frame)) for frame in record.stack_trace()[::-1]]
                    lines.append("\t".join([str(record.size), *frames]))
                output.with_name("stacks.txt").write_text("\n".join(lines), errors="replace")

            def leave() -> None:
                tracker.__exit__(None, None, None)

            begin, end, write = tracker.__enter__, leave, write_stacks
    kind, code = words[0], None
    if kind == "-c":
        sys.argv = ["-c", *words[2:]]
        look_first_in("")
        code = compile(words[1], "<string>", "exec")
    elif kind == "-m":
        sys.argv = words[1:]
        look_first_in(str(Path.cwd()))
    else:
        sys.argv = words
        script = Path(kind)
        if not script.is_dir() and not zipfile.is_zipfile(kind):
            look_first_in(str(script.resolve().parent))
            try:
                source = script.read_bytes()
            except OSError as error:
                print(f"{sys.executable}: can't open file {kind!r}: {error}", file=sys.stderr)
                sys.exit(2)
            kind = str(Path.cwd() / kind) if sys.version_info >= (3, 9) else kind
            code = compile(source, kind, "exec")
    for name in [name for name in main if not name.startswith("__")]:
        del main[name]
    main.update(__doc__=None, __package__=None, __spec__=None, __file__=kind)
    if kind in ("-c", "-m"):
        del main["__file__"]
    process = os.getpid()
    begin()
    try:
        if code is not None:
            exec(code, main)
        elif kind == "-m":
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(kind, run_name="__main__")
    finally:
        ended = perf_counter()
        end()
        if os.getpid() == process:  # not in a fork of the program
            try:
                write()
                output.with_name("seconds").write_text(repr(perf_counter() - ended))
            except Exception as error:
                print(f"hpcrl: the profile cannot be written: {error}", file=sys.stderr)


if __name__ == "__main__":
    _main()
