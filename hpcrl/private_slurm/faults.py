"""Faults on demand: wrappers of Slurm's commands that answer late, wrongly or not at all.

A directory of wrappers is put at the front of PATH. A small control file says what each does. Another process can
change it at any time::

    faults = VirtualSlurm(directory).faults()
    faults.set("sbatch", "accept-and-fail", times=1)
    subprocess.run([...], env=virtual.environment() | {"PATH": faults.path})
    assert faults.calls("sbatch")[0].out == "17\\n"         # Slurm has job 17, but the caller got an error
    faults.clear()

| fault | what the command does |
|---|---|
| `delay SECONDS` | waits, then makes the request |
| `delay-after SECONDS` | makes the request, then answers late |
| `accept-and-fail` | makes the request; if Slurm accepts it, says "Socket timed out on send/recv operation" and exits 1 |
| `fail MESSAGE` | makes no request, writes the message to stderr and exits 1 |
| `reply TEXT` | makes no request, writes the text to stdout and exits 0; an empty text is an empty answer |
| `hang` | makes no request and never ends |
| `missing` | does not exist: the shell says "command not found" |
| `banner TEXT` | writes a line to stdout, then works as usual |

Faults of several kinds on one command act together. Each may be limited to the next N calls (`times`), after letting
some calls pass (`skip`). Every call is counted in a log.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrl.errors import HpcrlError, UsageError, suggestion
from hpcrl.private_slurm import fault_wrapper
from hpcrl.private_slurm.fault_wrapper import CONTROL, LOCK, LOG

COMMANDS = ("sbatch", "squeue", "sacct", "scancel", "scontrol")
# kind -> what its value is: a number of seconds, a text, or nothing
KINDS = {
    "delay": "seconds",
    "delay-after": "seconds",
    "accept-and-fail": None,
    "fail": "text",
    "reply": "text",
    "hang": None,
    "missing": None,
    "banner": "text",
}


@dataclass(frozen=True)
class Fault:
    """A fault that is set; `times`: number of further calls that it affects (None: all), after `skip` calls."""

    command: str
    kind: str
    value: float | str | None
    times: int | None
    skip: int


@dataclass(frozen=True)
class Call:
    """One call of a wrapper. `code` and `out` are the real command's, if the wrapper waited for its end."""

    command: str
    arguments: tuple[str, ...]
    faults: tuple[str, ...]
    time: float
    pid: int
    code: int | None = None
    out: str | None = None


class Faults:
    """The wrappers in one directory, created at their first use."""

    def __init__(self, directory: Path, search: str | None = None) -> None:
        self.directory = directory.resolve()
        if not (self.directory / CONTROL).exists():
            self._install(os.environ.get("PATH", os.defpath) if search is None else search)

    @property
    def path(self) -> str:
        """The value of PATH with which programs find the wrappers, and no other sbatch, squeue, ... behind them."""
        return str(self._read()["path"])

    def set(
        self, command: str, kind: str, value: float | str | None = None, times: int | None = None, skip: int = 0
    ) -> None:
        """Set a fault of a command from its next call on.

        Raises:
            UsageError: there is no such command or fault, or its value is missing or of the wrong kind.
        """
        if command not in COMMANDS:
            raise UsageError(f"no wrapper for {command!r}; {suggestion(command, COMMANDS)}")
        value = _checked(kind, value)
        if times is not None and times < 1:
            raise UsageError(f"times: expected at least 1, got {times}")
        if kind == "missing" and (times is not None or skip):
            raise UsageError("missing: a missing command cannot count its calls: use clear instead of --times")
        with self._changed() as control:
            control["faults"].setdefault(command, {})[kind] = {"value": value, "times": times, "skip": skip}
            self._write_programs(control)

    def clear(self, command: str | None = None) -> None:
        """Remove the faults of one command, or of all."""
        with self._changed() as control:
            for name in [command] if command else list(control["faults"]):
                control["faults"].pop(name, None)
            self._write_programs(control)

    def active(self) -> list[Fault]:
        """Return the faults that affect the next calls."""
        faults = self._read()["faults"]
        return [Fault(command, kind, **facts) for command, kinds in faults.items() for kind, facts in kinds.items()]

    def calls(self, command: str | None = None) -> list[Call]:
        """Return every call so far, the oldest first. A command that is `missing` is not counted."""
        log = self.directory / LOG
        begun: dict[int, dict[str, Any]] = {}
        calls: list[dict[str, Any]] = []
        for line in log.read_text().splitlines() if log.exists() else ():
            facts = json.loads(line)
            if "command" in facts:
                begun[facts["pid"]] = facts
                calls.append(facts)
            else:
                begun[facts["pid"]] |= {"code": facts["code"], "out": facts["out"]}
        history = [Call(**(call | {name: tuple(call[name]) for name in ("arguments", "faults")})) for call in calls]
        return [call for call in history if command in (None, call.command)]

    def _install(self, search: str) -> None:
        real, path = {}, []
        for name in COMMANDS:
            executable = shutil.which(name, path=search)
            if executable is None:
                raise HpcrlError(f"{name}: not installed: there is nothing to wrap")
            real[name] = executable
        (self.directory / "bin").mkdir(parents=True, exist_ok=True)
        shutil.copy(fault_wrapper.__file__, self.directory / "wrapper.py")
        # Other programs in the directories of the real commands stay on PATH, the real commands do not: so `missing` works.
        for place in dict.fromkeys(os.path.realpath(folder) for folder in search.split(os.pathsep) if folder):
            if not any(Path(place, name).exists() for name in COMMANDS):
                path.append(place)
                continue
            rest = self.directory / f"beside-{len(path)}"
            rest.mkdir(exist_ok=True)
            for program in Path(place).iterdir():
                if program.name not in COMMANDS and not (rest / program.name).is_symlink():
                    (rest / program.name).symlink_to(program)
            path.append(str(rest))
        control = {"real": real, "path": os.pathsep.join([str(self.directory / "bin"), *path]), "faults": {}}
        self._write_programs(control)
        _write(self.directory / CONTROL, json.dumps(control))

    def _write_programs(self, control: dict[str, Any]) -> None:
        for name in COMMANDS:
            program = self.directory / "bin" / name
            if "missing" in control["faults"].get(name, {}):
                program.unlink(missing_ok=True)
            elif not program.exists():
                words = [sys.executable, "-I", "-S", str(self.directory / "wrapper.py"), str(self.directory), name]
                _write(program, f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', 0o755)

    def _read(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.directory / CONTROL).read_text())
        return content

    @contextmanager
    def _changed(self) -> Iterator[dict[str, Any]]:
        """Give the control file's content and write it back, while no wrapper reads it."""
        with (self.directory / LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            control = self._read()
            yield control
            _write(self.directory / CONTROL, json.dumps(control))


def _checked(kind: str, value: float | str | None) -> float | str | None:
    if kind not in KINDS:
        raise UsageError(f"no fault {kind!r}; {suggestion(kind, KINDS)}")
    wanted = KINDS[kind]
    if wanted is None:
        if value is not None:
            raise UsageError(f"{kind}: expected no value, got {value!r}")
        return None
    if value is None:
        raise UsageError(f"{kind}: expected {'a number of seconds' if wanted == 'seconds' else 'a text'}, got no value")
    if wanted == "text":
        return str(value)
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise UsageError(f"{kind}: expected a number of seconds, got {value!r}")
    return seconds


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file in one step, so that no reader sees half of it."""
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    new.chmod(mode)
    new.replace(path)
