"""Run a command as a cell: the user's own program with the same telemetry."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcrl.formats.attempts import CHECK_BEGINS
from hpcrl.formats.plan import CELL_DIRECTORIES
from hpcrl.placeholders import fill
from hpcrl.run.leftovers import end_leftovers, reap
from hpcrl.run.output import Output
from hpcrl.run.profilers.py_spy import allow_reading
from hpcrl.run.profiling import Profiling
from hpcrl.run.recorder import Recorder
from hpcrl.run.supervisor import oom_kills
from hpcrl.run.together import FAILED, PREPARED, Together
from hpcrl.run.training import Ended
from hpcrl.surroundings import Surroundings, enter
from hpcrl.telemetry.metrics import VARIABLE, MetricsReader
from hpcrl.telemetry.phases import PhaseClock

GRACE_SECONDS = 20.0
CHECKPOINTED = 75
_LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Places:
    """The directory where a command starts, that of its code, and the cell's own; all absolute."""

    start: Path
    code: Path
    own: Path

    @classmethod
    def of(cls, plan: Path, workload: Mapping[str, Any], cell: str) -> Places:
        """Return the directories of a cell. `workdir` may be below the plan."""
        own = plan.resolve() / CELL_DIRECTORIES / cell
        code = plan.resolve() / workload.get("workdir", "")
        return cls(own if workload.get("start_in") == "cell" else code, code, own)


def unsafe(places: Places) -> str | None:
    """Make the cell's own directory. Say why nothing may be written there, also if another user chose the place."""
    plan = places.own.parents[1]
    try:
        trusted = {os.getuid(), 0, plan.stat().st_uid}
        copied = [places.code] if places.code.parent == plan else []
        for path in (places.own.parent, places.own, *copied):
            with suppress(FileExistsError):
                if path not in copied:
                    path.mkdir()
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode):
                return f"{path}: is a symbolic link, and the command could write elsewhere: remove it, or plan again"
            if status.st_uid not in trusted:
                return f"{path}: belongs to user {status.st_uid}, not to you or the plan's owner: remove it, or plan again in a directory of your own"
    except FileNotFoundError:
        return None  # of the code, which is said below
    except OSError as error:
        return f"{error.filename}: cannot be created: {error.strerror}"
    return None


def run_command_cell(
    workload: dict[str, Any],
    values: dict[str, Any],
    places: Places,
    recorder: Recorder,
    clock: PhaseClock,
    caught: Callable[[], str | None],
    keep: Collection[int] = (),
    together: Together | None = None,
    surroundings: Surroundings | None = None,
    profiling: Profiling | None = None,
) -> Ended:
    """Run the command of one cell without a shell, and record what it reports.

    Processes that outlive the command are ended, except `keep`.

    The command's environment has ``$HPCRL_METRICS``, the file for reported values (JSON lines, written by ``hpcrl.log``),
    ``$HPCRL_CELL_<NAME>`` for each value of the cell, and ``$HPCRL_CELL_DIR``, the cell's own directory. Attempts and ranks
    share that directory, and a single rank removes it if it stays empty. The command gets TERM, and before the time limit
    the signal of the workload's `on_warning`. If it then ends with exit code 75 (EX_TEMPFAIL of sysexits.h), it has saved
    its state, and the cell is requeued. If Slurm tracks processes without control groups, it signals all of them, and the
    warning comes twice.

    The workload's `prepare` runs before the command, and `check` after a successful command. Each is its own phase and gets
    TERM only. If there are several ranks (`together`), only the first one runs them.

    Raises:
        UsageError: the `surroundings` of the study are missing on this machine.
    """
    known = values | {"workdir": places.code}
    words = {name: [fill(text, known) for text in workload.get(name, ())] for name in ("prepare", "command", "check")}
    with tempfile.TemporaryDirectory(prefix="hpcrl-") as scratch:
        metrics = Path(scratch) / "metrics.jsonl"
        environment = {**os.environ, VARIABLE: str(metrics)}
        environment |= {f"HPCRL_CELL_{name.upper()}": str(value) for name, value in values.items()}
        environment |= {"HPCRL_CELL_DIR": str(places.own), "PWD": str(places.start)}
        seen = (places.code, places.own, places.own.parents[1], Path(scratch), *_python_path(environment))

        def entered(arguments: list[str]) -> tuple[list[str], Mapping[str, str]]:
            if surroundings is None:
                return arguments, environment
            return enter(surroundings, arguments, environment, places.start, seen, bool(values.get("gpus")))

        steps = _Steps(places.start, entered, MetricsReader(metrics), recorder, clock, caught, keep, profiling)
        if wrong := unsafe(places):
            return Ended("failed", wrong, {})
        if not places.start.is_dir():
            return Ended("failed", f"workdir: {places.start}: no such directory on {os.uname().nodename}", {})
        ended = _prepare(steps, words["prepare"], together, workload.get("on_warning"))
        if ended is None:
            patterns = workload.get("metrics", {}).get("stdout")
            command, profiles = words["command"], Path(scratch) / "profile"
            if profiling:
                command = profiling.command(command, profiles)
            ended = steps.run("other", command, workload.get("on_warning", "none"), patterns)
            if profiling:
                profiling.command_ended(profiles)
            if words["check"]:
                ended = _check(steps, words["check"], ended, together)
        if together is None or (words["check"] and together.rank == 0):  # otherwise another rank may still start there
            with suppress(OSError):
                places.own.rmdir()
        if steps.reader.malformed:
            ended = replace(ended, facts=ended.facts | {"malformed_values": steps.reader.malformed})
    return ended


def _prepare(steps: _Steps, words: list[str], together: Together | None, warning: str | None) -> Ended | None:
    """Run the step before the command. Return the end of the cell if the command must not start."""
    if not words:
        return None
    if together and together.rank:
        return together.wait_until_prepared(steps.caught)
    ended = steps.run("prepare", words)
    well = ended.outcome == "completed"
    if together:
        together.say(PREPARED if well else FAILED)
    if not well:
        return Ended(ended.outcome, f"prepare: {ended.reason}", {})
    if (signalled := steps.caught()) in ("TERM", warning) and signalled:
        return Ended("preempted", f"{signalled} came during prepare, and the command was not started", {})
    return None


def _check(steps: _Steps, words: list[str], ended: Ended, together: Together | None) -> Ended:
    """Run the step after a successful command. Return the end of the cell."""
    if together:
        together.say(str(together.rank) if ended.outcome == "completed" else FAILED)
        if together.rank or not together.wait_for_all(steps.caught):
            return ended
    if ended.outcome != "completed":
        return ended
    print(CHECK_BEGINS, file=sys.stderr, flush=True)
    checked = steps.run("check", words)
    if checked.outcome == "completed":
        return ended
    return replace(ended, outcome=checked.outcome, reason=f"check: {checked.reason}")


@dataclass(frozen=True)
class _Steps:
    """Runs the programs of a cell one after another, in the same directory and with the same variables."""

    start: Path
    entered: Callable[[list[str]], tuple[list[str], Mapping[str, str]]]
    reader: MetricsReader
    recorder: Recorder
    clock: PhaseClock
    caught: Callable[[], str | None]
    keep: Collection[int]
    profiling: Profiling | None = None

    def run(
        self, phase: str, arguments: list[str], warning: str = "none", patterns: Mapping[str, str] | None = None
    ) -> Ended:
        """Run a program until it and all processes that it started have ended. Return how it ended.

        Args:
            warning: the signal that it gets before the time limit.
            patterns: regular expressions for values on its standard output.
        """
        self.clock.switch(phase)
        if phase != "check" and self.caught() == "TERM":
            return Ended("preempted", "ended by TERM", {})
        before = self.caught() if phase == "check" else None  # the command has had its signal
        words, environment = self.entered(arguments)
        profiling = self.profiling if phase == "other" and self.profiling and self.profiling.attaches else None
        try:
            child = subprocess.Popen(
                words,
                cwd=self.start,
                env=environment,
                start_new_session=True,
                stdout=subprocess.PIPE if patterns else None,
                preexec_fn=allow_reading if profiling else None,
            )
        except OSError as error:
            return Ended("failed", f"{error.filename or arguments[0]}: cannot be started: {error.strerror}", {})
        output = Output(child.stdout, patterns or {}, self.recorder.event) if child.stdout else None
        keep = {*self.keep, *(profiling.attach(child.pid, environment) if profiling else ())}
        code, starved = self._wait(child, output, warning, before is not None, keep)
        if profiling:
            profiling.detach()
        elif phase == "other" and self.profiling:
            self.profiling.take_writing()
        if left := end_leftovers(self.keep):
            self.recorder.event(left)
        _take(self.reader, self.recorder)
        for entry in output.close() if output else ():
            self.recorder.value(entry)
        facts = {"training_time": self.recorder.training_time(), "exit_code": code}
        self.clock.switch("other")
        return _how(arguments[0], code, starved, None if before else self.caught(), warning, facts)

    def _wait(
        self,
        child: subprocess.Popen[bytes],
        output: Output | None,
        warning: str,
        handed_on: bool,
        keep: Collection[int],
    ) -> tuple[int, bool]:
        """Return the exit code, and whether the kernel ended a process for lack of memory in the last seconds."""
        kills = deque([oom_kills()], maxlen=20)  # a large process needs seconds to end
        while True:
            try:
                return _end_of(child, 0.5, output, self.recorder), oom_kills() > kills[0]
            except subprocess.TimeoutExpired:
                kills.append(oom_kills())
                reap({child.pid, *keep})
                _take(self.reader, self.recorder)
                self.recorder.flush_if_due()
                if self.caught() == warning and not handed_on:
                    handed_on = True
                    os.killpg(child.pid, getattr(signal, f"SIG{warning}"))
                elif self.caught() == "TERM" and not handed_on:
                    handed_on = True
                    os.killpg(child.pid, signal.SIGTERM)
                    try:
                        return _end_of(child, GRACE_SECONDS, output, self.recorder), False
                    except subprocess.TimeoutExpired:
                        os.killpg(child.pid, signal.SIGKILL)


def _how(program: str, code: int, starved: bool, caught: str | None, warning: str, facts: dict[str, Any]) -> Ended:
    """Return how a program ended, which may have got a signal (`caught`)."""
    if code == CHECKPOINTED and caught == warning:
        return Ended(
            "preempted", f"{program} got the warning {warning} and ended with exit code 75, to continue later", facts
        )
    if caught == "TERM" and (code or warning != "TERM"):
        return Ended("preempted", "ended by TERM", facts)
    if code == 0:
        return Ended("completed", None, facts)
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        if name == "SIGKILL" and starved:
            return Ended("oom", f"{program} was ended by SIGKILL, because the kernel was out of memory", facts)
        return Ended("failed", f"{program} was ended by {name}", facts)
    return Ended("failed", f"{program} ended with exit code {code}", facts)


def _python_path(environment: Mapping[str, str]) -> list[Path]:
    """Return the directories of the entries of PYTHONPATH, which include hpcrl's worker."""
    entries = [Path(entry) for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return [entry if entry.is_dir() else entry.parent for entry in entries if entry.exists()]


def _end_of(child: subprocess.Popen[bytes], seconds: float, output: Output | None, recorder: Recorder) -> int:
    """Return the exit code, and read the output until then.

    Raises:
        subprocess.TimeoutExpired: the program still runs.
    """
    if output is None:
        return child.wait(timeout=seconds)
    deadline = time.monotonic() + seconds
    while True:
        for entry in output.values():
            recorder.value(entry)
        try:
            return child.wait(timeout=_LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            if time.monotonic() > deadline:
                raise


def _take(reader: MetricsReader, recorder: Recorder) -> None:
    for entry in reader.read():
        recorder.value(entry)
