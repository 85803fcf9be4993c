"""Run a command of Python under a profiler, in the command's own environment and its own process."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from hpcrl.errors import UsageError
from hpcrl.profilers import PROFILERS, command_fault, python_command

_PROGRAM = "hpcrl.run.profilers.program"
SECONDS = "seconds"  # the file beside the profile, for how long it took to stop the profiler and to write it


def under(profiler: str, words: list[str], scratch: Path, output: Path) -> list[str]:
    """Return the command line that runs a Python command under a profiler, which writes `output` at its end.

    hpcrl's program for that is copied into `scratch`, because the command's environment need not have hpcrl.

    Raises:
        UsageError: it is not a command of Python.
    """
    command = python_command(words)
    if command is None:
        raise UsageError(command_fault(PROFILERS[profiler], words) or "")
    spec = importlib.util.find_spec(_PROGRAM)
    assert spec is not None and spec.loader is not None
    source: str = spec.loader.get_source(_PROGRAM)  # type: ignore[attr-defined]
    program = scratch / "hpcrl-profiled.py"
    program.write_text(source, encoding="utf-8")
    return [*command.interpreter, str(program), profiler, str(output), *command.program]
