"""``python tools/mutants [AREA ...] [--only WORDS]``: check that the tests notice each of the mistakes in this directory.

Each mistake is planted alone in a copy of the tree. At least one of the tests that are named beside it must then fail. All
of these tests must first pass on the unchanged copy. The exit code is 1 if a mistake survives, if its text does not occur
exactly once, or if tests fail without a mistake.
"""

from __future__ import annotations

import argparse
import compileall
import importlib
import os
import py_compile
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from ruamel.yaml import YAML

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# A mistake may make a test wait for ever; a timeout detects it.
SECONDS = 600
OTHERS = (
    "pytest",
    "numpy",
    "scipy.special",
    "pandas",
    "pyarrow.parquet",
    "hypothesis",
    "pydantic",
    "jinja2",
    "psutil",
    "click",
)


@dataclass(frozen=True)
class Mutant:
    """A mistake: `old`, which occurs exactly once in the file, is replaced by `new`.

    Args:
        area: the list that contains it.
        breaks: what it breaks, in words.
        tests: arguments for pytest; at least one of these tests must fail.
    """

    area: str
    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]

    def problem(self, root: Path = ROOT) -> str | None:
        """Say why it cannot be planted; None if it can."""
        path = root / self.file
        if not path.is_file():
            return f"{self.file}: no such file"
        text = path.read_text(encoding="utf-8")
        if (found := text.count(self.old)) != 1:
            return f"{self.file}: expected the text once, got {found} times: {self.old!r}"
        if path.suffix == ".py":
            try:
                compile(text.replace(self.old, self.new), self.file, "exec")
            except SyntaxError as error:
                return f"{self.file}: the result is not valid Python: {error}"
        return None


def kept() -> Iterator[Mutant]:
    """Give the mistakes of the lists in this directory."""
    for path in sorted(HERE.glob("*.yaml")):
        for group in YAML(typ="safe").load(path):
            for each in group["mutants"]:
                tests = str(each.get("tests") or group["tests"]).split()
                yield Mutant(path.stem, group["file"], each["old"], each["new"], each["breaks"], tuple(tests))


def main(arguments: Sequence[str]) -> int:
    """Plant the chosen mistakes, print the result of each, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python tools/mutants", description=__doc__.partition("\n")[0])
    areas = sorted(path.stem for path in HERE.glob("*.yaml"))
    parser.add_argument(
        "areas", nargs="*", metavar="AREA", help=f"lists to plant from: {', '.join(areas)}; default: all"
    )
    parser.add_argument(
        "--only", metavar="WORDS", default="", help="only mistakes whose area, file or description contains all words"
    )
    parser.add_argument("--list", action="store_true", help="list the mistakes, and plant none")
    options = parser.parse_args(arguments)
    if unknown := set(options.areas) - set(areas):
        parser.error(f"no area {min(unknown)!r}; there are: {', '.join(areas)}")
    words = options.only.lower().split()
    chosen = [
        each
        for each in kept()
        if each.area in (options.areas or areas)
        and all(word in f"{each.area} {each.file} {each.breaks}".lower() for word in words)
    ]
    if options.list:
        for each in chosen:
            print(f"{each.area}: {each.breaks} ({each.file})")
        return 0
    if problems := [problem for each in chosen if (problem := each.problem())]:
        print(*problems, sep="\n", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="hpcrl-mutants-") as scratch:
        copy = Path(scratch) / "tree"
        _copy(copy)
        _import_others()
        every = sorted({test for each in chosen for test in each.tests})
        if every and (output := _failure(copy, every, SECONDS * len(every), keep=True)):
            print(f"the tests fail without any mistake:\n{output}", file=sys.stderr)
            return 1
        survived = _plant_all(copy, chosen)
    return int(bool(survived))


def _plant_all(copy: Path, chosen: Sequence[Mutant]) -> list[Mutant]:
    survived = []
    caught: Counter[str] = Counter()
    for number, each in enumerate(chosen, start=1):
        path = copy / each.file
        text = path.read_text(encoding="utf-8")
        begun = time.monotonic()
        path.write_text(text.replace(each.old, each.new), encoding="utf-8")
        noticed = _failure(copy, each.tests, SECONDS) is not None
        path.write_text(text, encoding="utf-8")
        caught[each.area] += noticed
        if not noticed:
            survived.append(each)
        word = "caught" if noticed else "SURVIVED"
        took = time.monotonic() - begun
        print(f"{number}/{len(chosen)} {word} ({took:.0f} s) {each.area}: {each.breaks} ({each.file})", flush=True)
    for area, total in Counter(each.area for each in chosen).items():
        print(f"{area}: {total} planted, {caught[area]} caught, {total - caught[area]} survived")
    print(f"{len(chosen)} planted, {len(chosen) - len(survived)} caught, {len(survived)} survived")
    return survived


def _copy(copy: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        if not name.startswith("docs/results/") and (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    # A file that is changed and restored within a second must not count as the compiled one.
    compileall.compile_dir(copy, quiet=1, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)


def _failure(copy: Path, tests: Sequence[str], seconds: float, keep: bool = False) -> str | None:
    """Run tests in a child of this process. Return their output if one fails, None if all pass.

    The child has third-party packages already imported, but not hpcrl, because the imports would take longer than the tests.

    Args:
        keep: whether to keep the compiled tests for later calls.
    """
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            code = 3
            try:
                os.setsid()
                os.chdir(copy)
                os.environ["PYTHONPATH"] = str(copy)
                sys.path[:0] = [str(copy)]
                sys.dont_write_bytecode = not keep
                for stream in (1, 2):
                    os.dup2(output.fileno(), stream)
                import pytest

                code = int(pytest.main(["-x", "-q", *tests]))
            finally:
                sys.stdout.flush()
                os._exit(code)
        until = time.monotonic() + seconds
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > until:
                for process in [psutil.Process(child), *psutil.Process(child).children(recursive=True)]:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
                os.waitpid(child, 0)
                return "no end"
            time.sleep(0.05)
        output.seek(0)
        said = output.read().decode(errors="replace")[-3000:]
    code = os.waitstatus_to_exitcode(ended[1])
    if code in (3, 4, 5):
        raise SystemExit(f"pytest cannot run {' '.join(tests)}:\n{said}")
    return said or "failed" if code else None


def _import_others() -> None:
    """Import the third-party packages of the tests, so that each child has them."""
    os.environ["PYTHONDONTWRITEBYTECODE"] = os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    for name in OTHERS:
        importlib.import_module(name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
