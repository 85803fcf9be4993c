"""Measure what a built environment costs its user: size, times, memory, and the traceback of a typical mistake."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hpcrl.catalogue.registry import frameworks
from hpcrl.environments.build import MARKER
from hpcrl.environments.commands import call
from hpcrl.environments.inside import last_of, run_inside, variables
from hpcrl.errors import HpcrlError, UsageError, printable
from hpcrl.formats.plan import Environment
from hpcrl.formats.usability import MOST_CHARACTERS, Failure, Measurement, checked

_MOST_SECONDS = 1800.0  # of one process; a first update with compiling takes a minute
_IMPORT = """\
import importlib, sys, time
start = time.perf_counter()
first, *_ = [importlib.import_module(name) for name in sys.argv[1:]]
print(time.perf_counter() - start, first.__version__)
"""


def check_measurable(environment: Environment) -> None:
    """Check that an environment can be measured.

    Raises:
        UsageError: it is not that of a framework.
    """
    if environment.framework is None:
        raise UsageError(f"{environment.name}: expected an environment of a framework: only these can be measured")


def measure(
    environment: Environment, path: Path, repeats: int, setup: Sequence[str] = (), say: Callable[[str], object] = print
) -> Iterator[Measurement | Failure]:
    """Measure each execution mode of the environment's framework `repeats` times, each time in new processes of one thread.

    A mode that fails is not tried again, and the others go on.

    Args:
        environment: one of a framework.
        say: called with the present step.

    Raises:
        HpcrlError: the files of the environment cannot be read.
    """
    framework = frameworks()[str(environment.framework)]
    size, build_seconds = size_of(path), _build_seconds(path)
    modules = list(dict.fromkeys([framework.name, *environment.imports]))  # what its cells import
    given = {name: "1" for name in framework.threads} | framework.variables(1, os.environ)
    warm = False
    failed: set[str] = set()
    for number in range(repeats):
        for execution in framework.modes:
            if execution in failed:
                continue
            say(f"{environment.key}: measuring {execution}, {number + 1} of {repeats}")
            try:
                if not warm:  # the first import reads the files from the disk
                    _import(path, modules, setup)
                    warm = True
                import_seconds, version = _import(path, modules, setup)
                wrong = f"{execution} mode cannot be measured"
                arguments = (framework.name, execution, environment.flavour)
                result = run_inside(path, setup, "hpcrl.rl.usability", arguments, given, wrong, _MOST_SECONDS)
                known: dict[str, Any] = {
                    "framework": framework.name,
                    "version": version,
                    "environment": environment.key,
                }
                known |= {"execution": execution, "size": size, "build_seconds": build_seconds}
                run: Measurement | Failure = _checked({**result, **known, "import_seconds": import_seconds}, wrong)
            except HpcrlError as error:
                failed.add(execution)
                say(f"{environment.key}: {error}")
                reason = printable(" ".join(str(error).split()))[:MOST_CHARACTERS]
                run = Failure(framework.name, environment.key, execution, reason)
            yield run


def _checked(facts: dict[str, Any], wrong: str) -> Measurement:
    try:
        return checked(Measurement, facts)
    except ValueError as error:
        raise HpcrlError(f"{wrong}: {error}") from None


def size_of(path: Path) -> int:
    """Return the bytes of all files below a directory: links are not followed, and a file with two names counts once."""
    files: dict[tuple[int, int], int] = {}
    for directory, _, names in os.walk(path):
        for name in names:
            about = os.lstat(f"{directory}/{name}")
            files[about.st_dev, about.st_ino] = about.st_size
    return sum(files.values())


def _build_seconds(path: Path) -> float | None:
    try:
        seconds = json.loads((path / MARKER).read_text(encoding="utf-8")).get("build_seconds")
    except (OSError, ValueError, AttributeError):
        raise HpcrlError(f"{path / MARKER}: cannot be read: build the environment again") from None
    return float(seconds) if isinstance(seconds, int | float) else None


def _import(path: Path, modules: Sequence[str], setup: Sequence[str]) -> tuple[float, str]:
    """Import modules in a new process, and return the seconds that they took together, and the version of the first."""
    failed = f"import {', '.join(modules)} fails"
    words: list[str | Path] = [path / "bin/python", "-c", _IMPORT, *modules]
    out = call(words, setup, variables(path), failed=failed, most_seconds=_MOST_SECONDS)
    try:
        seconds, version = out.splitlines()[-1].split()
        return float(seconds), version
    except (ValueError, IndexError):
        raise HpcrlError(
            f"{failed}: expected its time and version in the last line of its output, got {last_of(out)}"
        ) from None
