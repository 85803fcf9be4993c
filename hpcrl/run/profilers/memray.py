"""memray: which calls held the memory when most was in use. It sees allocations of Python and of native libraries.

Its file is aggregated: its size depends on the number of different stacks, not on the time of the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hpcrl.errors import UsageError
from hpcrl.formats.profiles import Frame, functions_of, place_of
from hpcrl.run.profilers.interface import Found
from hpcrl.run.profilers.python_program import under

_FILE, _STACKS, _MISSING = "profile.bin", "stacks.txt", "missing"


class Tool:
    """Profiles with memray."""

    def __init__(self, framework: str | None = None) -> None:
        self._tracker: Any = None

    def start(self, scratch: Path) -> None:
        try:
            import memray
        except ImportError:
            raise UsageError(f"it is not installed in {_prefix()}: add it there") from None
        kind = memray.FileFormat.AGGREGATED_ALLOCATIONS
        self._tracker = memray.Tracker(str(scratch / _FILE), file_format=kind)
        self._tracker.__enter__()

    def look(self) -> bool:
        return False

    def stop(self) -> None:
        self._tracker.__exit__(None, None, None)

    def abandon(self) -> None:
        """Do nothing: to stop it may take long, and it ends with this process."""

    def write(self, scratch: Path) -> Found:
        import memray

        file = scratch / _FILE
        records = memray.FileReader(str(file)).get_high_watermark_allocation_records(merge_threads=True)
        return _found(file, ((record.stack_trace()[::-1], record.size) for record in records))

    def wrapped(self, words: list[str], scratch: Path) -> list[str]:
        return under("memray", words, scratch, scratch / _FILE)

    def read(self, scratch: Path) -> Found | None:
        if (scratch / _MISSING).exists():
            raise UsageError("it is not installed in the environment of the command: add it there")
        if not (scratch / _STACKS).exists():
            return None
        lines = (line.split("\t") for line in (scratch / _STACKS).read_text(errors="replace").splitlines())
        stacks = (([tuple(part.split("\0")) for part in parts], int(size)) for size, *parts in lines)
        return _found(scratch / _FILE, stacks)


def _found(file: Path, stacks: Iterable[tuple[list[Any], int]]) -> Found:
    root = Frame("all")
    for stack, size in stacks:
        root.add([place_of(str(function), str(path), 0) for function, path, *_ in stack], float(size))
    return Found(file, root.value, functions_of(root), root)


def _prefix() -> str:
    import sys

    return sys.prefix
