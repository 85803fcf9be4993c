"""Measure what a built environment costs its user: size, times, memory, and the traceback of a typical mistake."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hpcrl.catalogue.registry import frameworks
from hpcrl.environments.build import MARKER
from hpcrl.environments.commands import call
from hpcrl.environments.inside import run_inside, variables
from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.plan import Environment
from hpcrl.formats.usability import Measurement

_IMPORT = """\
import time
start = time.perf_counter()
import {0}
print(time.perf_counter() - start, {0}.__version__)
"""


def measure(
    environment: Environment, path: Path, repeats: int, setup: Sequence[str] = (), say: Callable[[str], object] = print
) -> Iterator[Measurement]:
    """Measure each execution mode of the environment's framework `repeats` times, each time in new processes of one thread.

    Args:
        say: called with the present step.

    Raises:
        UsageError: the environment is not that of a framework.
        HpcrlError: the framework does not import or does not train.
    """
    if environment.framework is None:
        raise UsageError(f"{environment.name}: expected an environment of a framework: only these can be measured")
    framework = frameworks()[environment.framework]
    size, build_seconds = size_of(path), _build_seconds(path)
    _, version = _import(path, framework.name, setup)  # the first import reads the files from the disk
    given = {name: "1" for name in framework.threads} | framework.variables(1, os.environ)
    for number in range(repeats):
        for execution in framework.modes:
            say(f"{environment.key}: measuring {execution}, {number + 1} of {repeats}")
            seconds, _ = _import(path, framework.name, setup)
            arguments = (framework.name, execution, environment.flavour)
            failed = f"{path}: {execution} mode cannot be measured"
            found = run_inside(path, setup, "hpcrl.rl.usability", arguments, given, failed)
            yield Measurement(
                framework=framework.name,
                version=version,
                environment=environment.key,
                execution=execution,
                size=size,
                build_seconds=build_seconds,
                import_seconds=seconds,
                **found,
            )


def size_of(path: Path) -> int:
    """Return the bytes of all files below a directory: links are not followed, and a file with two names counts once."""
    files: dict[tuple[int, int], int] = {}
    for directory, _, names in os.walk(path):
        for name in names:
            found = os.lstat(f"{directory}/{name}")
            files[found.st_dev, found.st_ino] = found.st_size
    return sum(files.values())


def _build_seconds(path: Path) -> float | None:
    try:
        found = json.loads((path / MARKER).read_text(encoding="utf-8")).get("build_seconds")
    except (OSError, ValueError, AttributeError):
        raise HpcrlError(f"{path / MARKER}: cannot be read: build the environment again") from None
    return float(found) if isinstance(found, int | float) else None


def _import(path: Path, module: str, setup: Sequence[str]) -> tuple[float, str]:
    """Import a module in a new process, and return the seconds that it took, and its version."""
    failed = f"{path}: import {module} fails"
    out = call([path / "bin/python", "-c", _IMPORT.format(module)], setup, variables(path), failed=failed)
    seconds, version = out.splitlines()[-1].split()
    return float(seconds), version
