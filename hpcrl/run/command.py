"""A cell that runs any command: the user's own program under the same telemetry."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrl.formats.plan import CELL_DIRECTORIES
from hpcrl.placeholders import fill
from hpcrl.run.leftovers import end_leftovers, reap
from hpcrl.run.output import Output
from hpcrl.run.recorder import Recorder
from hpcrl.run.supervisor import oom_kills
from hpcrl.run.training import Ended
from hpcrl.telemetry.metrics import VARIABLE, MetricsReader
from hpcrl.telemetry.phases import PhaseClock

GRACE_SECONDS = 20.0
CHECKPOINTED = 75
_LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Places:
    """Where a command starts, the directory of its code, and the one that its cell has for itself; all absolute."""

    start: Path
    code: Path
    own: Path

    @classmethod
    def of(cls, plan: Path, workload: Mapping[str, Any], cell: str) -> Places:
        """Look up the places of a cell; `workdir` may lie below the plan."""
        own = plan.resolve() / CELL_DIRECTORIES / cell
        code = plan.resolve() / workload.get("workdir", "")
        return cls(own if workload.get("start_in") == "cell" else code, code, own)


def run_command_cell(
    workload: dict[str, Any],
    values: dict[str, Any],
    places: Places,
    recorder: Recorder,
    clock: PhaseClock,
    caught: Callable[[], str | None],
    keep: Collection[int] = (),
) -> Ended:
    """Run the command of one cell without a shell, and record what it reports.

    Processes that outlive the command are ended, but `keep`.

    The command finds the file for reported values in ``$HPCRL_METRICS`` (JSON lines; ``hpcrl.log`` writes them), each
    of the cell's values in ``$HPCRL_CELL_<NAME>``, and the directory that the cell has for itself in ``$HPCRL_CELL_DIR``;
    attempts share that, and it is removed where it stays empty. TERM is handed on to it, and the warning before the time
    limit if the workload's `on_warning` says which signal that is. A command that then ends with exit code 75
    (EX_TEMPFAIL of sysexits.h) has kept what it needs to go on, and is requeued.
    Where Slurm follows processes without control groups it signals them all, and the warning comes twice.
    """
    warning = workload.get("on_warning", "none")
    patterns = workload.get("metrics", {}).get("stdout")
    arguments = [fill(text, values | {"workdir": places.code}) for text in workload["command"]]
    with tempfile.TemporaryDirectory(prefix="hpcrl-") as scratch:
        metrics = Path(scratch) / "metrics.jsonl"
        environment = {**os.environ, VARIABLE: str(metrics)}
        environment |= {f"HPCRL_CELL_{name.upper()}": str(value) for name, value in values.items()}
        environment |= {"HPCRL_CELL_DIR": str(places.own), "PWD": str(places.start)}
        clock.switch("other")
        try:
            places.own.mkdir(parents=True, exist_ok=True)
            if not places.start.is_dir():
                return Ended("failed", f"workdir: {places.start}: no such directory on {os.uname().nodename}", {})
            child = subprocess.Popen(
                arguments,
                cwd=places.start,
                env=environment,
                start_new_session=True,
                stdout=subprocess.PIPE if patterns else None,
            )
        except OSError as error:
            return Ended("failed", f"{error.filename or arguments[0]}: cannot be started: {error.strerror}", {})
        reader = MetricsReader(metrics)
        output = Output(child.stdout, patterns, recorder.event) if child.stdout else None
        code, starved = _wait(child, reader, output, recorder, caught, warning, {child.pid, *keep})
        if left := end_leftovers(keep):
            recorder.event(left)
        _take(reader, recorder)
        for entry in output.close() if output else ():
            recorder.value(entry)
        with suppress(OSError):
            places.own.rmdir()
        facts: dict[str, Any] = {"training_time": recorder.training_time(), "exit_code": code}
        if reader.malformed:
            facts["malformed_values"] = reader.malformed
    if code == CHECKPOINTED and caught() == warning:
        return Ended("preempted", f"{arguments[0]} was warned by {warning} and asked to go on later", facts)
    if caught() == "TERM" and (code or warning != "TERM"):
        return Ended("preempted", "ended by TERM", facts)
    if code == 0:
        return Ended("completed", None, facts)
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        if name == "SIGKILL" and starved:
            return Ended("oom", f"{arguments[0]} was ended by SIGKILL: the kernel was out of memory for it", facts)
        return Ended("failed", f"{arguments[0]} was ended by {name}", facts)
    return Ended("failed", f"{arguments[0]} ended with exit code {code}", facts)


def _wait(
    child: subprocess.Popen[bytes],
    reader: MetricsReader,
    output: Output | None,
    recorder: Recorder,
    caught: Callable[[], str | None],
    warning: str,
    keep: Collection[int],
) -> tuple[int, bool]:
    """Return the exit code, and whether the kernel has ended a process for want of memory in the last seconds."""
    handed_on = False
    kills = deque([oom_kills()], maxlen=20)  # a large process takes seconds to go
    while True:
        try:
            return _end_of(child, 0.5, output, recorder), oom_kills() > kills[0]
        except subprocess.TimeoutExpired:
            kills.append(oom_kills())
            reap(keep)
            _take(reader, recorder)
            recorder.flush_if_due()
            if caught() == warning and not handed_on:
                handed_on = True
                os.killpg(child.pid, getattr(signal, f"SIG{warning}"))
            elif caught() == "TERM" and not handed_on:
                handed_on = True
                os.killpg(child.pid, signal.SIGTERM)
                try:
                    return _end_of(child, GRACE_SECONDS, output, recorder), False
                except subprocess.TimeoutExpired:
                    os.killpg(child.pid, signal.SIGKILL)


def _end_of(child: subprocess.Popen[bytes], seconds: float, output: Output | None, recorder: Recorder) -> int:
    """Return the exit code, and read the output meanwhile.

    Raises:
        subprocess.TimeoutExpired: it still runs.
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
