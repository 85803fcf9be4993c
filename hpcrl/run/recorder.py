"""Collect the measurements of a rank and append them to its record every few seconds."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hpcrl.formats.record import SAMPLE_COLUMNS, SAMPLE_LISTS, TABLES, RecordWriter
from hpcrl.telemetry.meter import Meter, Usage
from hpcrl.telemetry.phases import NOT_TRAINING, PhaseClock

FLUSH_SECONDS = 5.0
_VALUES = 200  # maximum reported entries in one frame


class Follower(Protocol):
    """What gets episodes, evaluations and samples while the loop trains, in a phase of its own."""

    phase: str

    def add(self, samples: Iterable[Sequence[float]], kind: str, row: Sequence[float], resumed: int | None) -> None:
        """Take rows of samples, and one of episodes or evaluations; `resumed` is the step of the checkpoint that it goes on from."""

    def flush(self) -> None:
        """Hand on what was taken."""

    def close(self, samples: Iterable[Sequence[float]], footer: Mapping[str, Any], phases: Mapping[str, float]) -> None:
        """Take the last samples, the fields of the record's last frame and the seconds of the phases."""


class Recorder:
    """The reporter of a training loop, and the buffer between it, the sampler and the record.

    Both the training loop and the thread that reads from the sampler add to it and flush it.

    Args:
        cpu_before: CPU seconds before the start of the cell that the sampler counts: calibration and imports.
        wanted: the names of the reported values whose last value is needed at the end.
    """

    def __init__(self, path: Path, clock: PhaseClock, cpu_before: float = 0.0, wanted: Collection[str] = ()) -> None:
        self._wanted = wanted
        self._writer = RecordWriter(path)
        self._cpu_before = cpu_before
        self._clock = clock
        self._lock = threading.Lock()  # for the buffers and the writer
        self._flushing = threading.Lock()
        self._start = time.monotonic()
        self.started = time.time()
        self._last = self._shown = self._start
        self._rows: dict[str, list[tuple[float, ...]]] = {kind: [] for kind in TABLES}
        self._lists: list[dict[str, list[float]]] = []
        self._values: list[dict[str, Any]] = []
        self.followers: list[Follower] = []
        self._closing: tuple[dict[str, Any], dict[str, float]] = {}, {}  # of the record's last frame, for the followers
        self.look: Callable[[int], None] = lambda step: None  # is called in the training loop when it has made progress
        self._unshown: list[tuple[float, ...]] = []  # samples that are not among the events yet
        self.last: dict[str, float] = {}  # last reported value of each wanted name
        self._warned = False
        self._lost = 0  # frames that could not be written and are not kept
        self._evaluated = 0.0
        self._earlier: dict[str, float] = {}  # seconds that earlier attempts had spent until their checkpoint
        self.resumed_step: int | None = None
        self.goal_time: float | None = None
        self.goal_wall_time: float | None = None
        self.sampler_cost: dict[str, float] = {}
        self.meter: Meter | None = None  # of all processes in the samples
        self._unreaped = False

    def header(self, facts: dict[str, Any]) -> None:
        self._append("header", facts | {"started": self.started})

    def training_time(self) -> float:
        """Return the seconds of training so far: all phases except evaluations and those before the first step.

        The time until the checkpoint from which this attempt continued is included.
        """
        own = self._clock.total() - sum(self._clock.seconds[phase] for phase in NOT_TRAINING)
        return self._earlier.get("training_time", 0.0) + own

    def evaluation_time(self) -> float:
        """Return the seconds of evaluations, counted in the same way."""
        return self._earlier.get("evaluation_time", 0.0) + self._clock.seconds["evaluate"]

    def spent(self) -> dict[str, float | None]:
        return {
            "training_time": self.training_time(),
            "evaluation_time": self.evaluation_time(),
            "wall_time": self._earlier.get("wall_time", 0.0) + time.monotonic() - self._start,
            "goal_time": self.goal_time,
            "goal_wall_time": self.goal_wall_time,
        }

    def resumed(self, step: int, spent: dict[str, float | None]) -> None:
        self.resumed_step = step
        self.goal_time, self.goal_wall_time = spent.get("goal_time"), spent.get("goal_wall_time")
        self._earlier = {name: value for name, value in spent.items() if value is not None}

    # Called by the training loop.

    def episode(self, step: int, value: float, length: int) -> None:
        row = (step, time.monotonic() - self._start, value, length)
        self._add("episodes", row)
        self._show("episodes", row)
        self.flush_if_due()

    def evaluation(self, step: int, value: float) -> None:
        self._evaluated = time.monotonic() - self._start
        # A confirmation may follow: the seconds of an evaluation are known when the next one, or the record, ends.
        row = (step, self._evaluated, value, self._evaluated - self._clock.in_phase(), self.evaluation_time())
        self._add("evaluations", row)
        self._show("evaluations", row)

    def confirmation(self, step: int, value: float, reached: bool) -> None:
        """Add the result of other starts for the last evaluation, which reached the goal."""
        if reached:
            self.goal_time = self.training_time()
            self.goal_wall_time = self._earlier.get("wall_time", 0.0) + self._evaluated
        verdict = "confirmed" if reached else "not confirmed"
        self.event(
            f"the evaluation at step {step} reached the goal; mean return from other starts {value:g}: {verdict}"
        )

    def progress(self, step: int, total: int) -> None:
        row = (step, total, time.monotonic() - self._start)
        with self._lock:
            self._rows["progress"] = [row]  # the last row before a flush is enough
        self.look(step)
        self.flush_if_due()

    # Called by everything else.

    def value(self, entry: dict[str, Any]) -> None:
        """Add one reported entry of a user's command."""
        started = time.time() - (time.monotonic() - self._start)
        at = (entry.get("time") or time.time()) - started
        numbers = {name: float(number) for name, number in entry.items() if name not in ("time", "step")}
        self.last |= {name: number for name, number in numbers.items() if name in self._wanted}
        with self._lock:
            self._values.append({"time": at, "step": entry.get("step"), "values": numbers})

    def sample(self, reading: dict[str, Any]) -> None:
        """Add one reading of the sampler. Values that it did not read are NaN."""
        if "cpu_seconds" in reading:
            self._unreaped |= bool(reading.get("unreaped"))
            seconds = max(0.0, reading["cpu_seconds"] - self._cpu_before)
            if self._unreaped and self.meter:
                seconds = max(seconds, self.meter.counted_seconds() or 0.0)
            reading = {**reading, "cpu_seconds": seconds}
        nan = float("nan")
        values = {name: nan if (value := reading.get(name)) is None else float(value) for name in SAMPLE_COLUMNS[1:]}
        row = (reading["monotonic"] - self._start, *values.values())
        lists = {name: [float(number) for number in reading.get(name, ())] for name in SAMPLE_LISTS}
        with self._lock:
            self._rows["samples"].append(row)
            if self.followers:
                self._unshown.append(row)
            self._lists.append(lists)
            self.sampler_cost = {
                name: float(reading[name]) for name in ("sampler_cpu", "sampler_memory") if name in reading
            }

    def known(self, used: Usage) -> dict[str, Any]:
        """Return the workload's usage. Values that are not known are None, with a note."""
        facts = {
            "own_cpu_seconds": used.cpu_seconds,
            "own_context_switches": used.context_switches,
            "largest_process": used.largest_process,
            "unreaped": self._unreaped,
        }
        if not self._unreaped:
            return facts
        counted = used.counted_seconds
        lost = "context switches" if counted is not None else "CPU time and context switches"
        self.event(f"a process ignored SIGCHLD, so that {lost} of its children are not known")
        seconds = None if counted is None else max(counted, used.cpu_seconds)
        return facts | {"own_cpu_seconds": seconds, "own_context_switches": None}

    def calibration(self, facts: dict[str, Any]) -> None:
        """Add the result of this node's calibration."""
        self._append("calibration", facts)

    def event(self, text: str) -> None:
        """Add a remark; when the record is closed, print it."""
        if self._closing[0]:
            print(f"hpcrl: {text}", file=sys.stderr, flush=True)
            return
        self._append("event", {"time": time.monotonic() - self._start, "text": text})

    def flush_if_due(self) -> None:
        if time.monotonic() - self._last >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Append the buffered frames. Those that cannot be written are kept for the next time."""
        with self._flushing:
            self._last = time.monotonic()
            for kind in TABLES:
                self._flush(kind)
            while entries := self._values[:_VALUES]:
                if not self._append("values", {"entries": entries}, kept=True):
                    break
                with self._lock:
                    del self._values[: len(entries)]
            # Written completely each time, and the last one is valid: a killed rank has those of its last flush.
            seconds, counts = self._clock.so_far()
            self._append("phases", {"seconds": seconds, "counts": counts}, kept=True)

    def _flush(self, kind: str) -> None:
        lists: list[dict[str, list[float]]] = []
        with self._lock:
            rows, self._rows[kind] = self._rows[kind], []
            if kind == "samples":
                lists, self._lists = self._lists, []
        if not rows:
            return
        payload = {"table": np.array(rows, np.float64)}
        for name in SAMPLE_LISTS if lists else ():
            widths = {len(sample[name]) for sample in lists} - {0}
            if len(widths) == 1:  # a sample of memory only has none: a row of NaN
                without = [math.nan] * widths.pop()
                payload[name] = np.array([sample[name] or without for sample in lists], np.float32)
        if not self._append(kind, payload, kept=True):
            with self._lock:
                self._rows[kind] = rows + self._rows[kind]
                self._lists = lists + self._lists

    def _add(self, kind: str, row: tuple[float, ...]) -> None:
        with self._lock:
            self._rows[kind].append(row)

    def _show(self, kind: str, row: tuple[float, ...]) -> None:
        """Give a row and the new samples to the followers, in the thread of the training loop."""
        if not self.followers:
            return
        samples = self._new_samples()
        if due := time.monotonic() - self._shown >= FLUSH_SECONDS:
            self._shown = time.monotonic()
        for follower in self.followers:
            with self._clock.aside(follower.phase):
                follower.add(samples, kind, row, self.resumed_step)
                if due:
                    follower.flush()

    def _new_samples(self) -> list[tuple[float, ...]]:
        with self._lock:
            samples, self._unshown = self._unshown, []
        return samples

    def footer(self, outcome: str, reason: str | None, facts: dict[str, Any]) -> bool:
        """Append the last frames and close the record. Tell whether the footer was written."""
        self.flush()
        self._lost += sum(bool(kept) for kept in (*self._rows.values(), self._values))
        content = {
            "outcome": outcome,
            "reason": reason,
            "wall_time": time.monotonic() - self._start,
            **facts,
            **self.sampler_cost,
        }
        written = self._append("footer", content | {"lost_frames": self._lost})
        self._writer.close()
        self._closing = content, self._clock.so_far()[0]
        return written

    def close_followers(self) -> None:
        """Let those that got the values write or send the rest; the record is closed, so this is in no measured time."""
        samples = self._new_samples()
        for follower in self.followers:
            follower.close(samples, *self._closing)

    def _append(self, kind: str, payload: dict[str, Any], kept: bool = False) -> bool:
        with self._lock:
            done = self._writer.write(kind, payload)
            self._lost += not (done or kept)
        if self._writer.problem and not self._warned:
            self._warned = True
            print(
                f"hpcrl: the record cannot be written ({self._writer.problem}); the workload continues",
                file=sys.stderr,
            )
        return done


class Sampler:
    """The sampler process of this node, and the thread that passes its readings to the recorder.

    `environment` is that of the node, because a rank may have limited its own to one GPU.
    """

    def __init__(self, recorder: Recorder, root: int, interval: float, environment: Mapping[str, str]) -> None:
        self._recorder = recorder
        self._process: subprocess.Popen[str] | None = None
        self._failure: str | None = None
        self._samples = 0
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "hpcrl.telemetry.sampler", str(root), str(interval)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
                env=environment,
            )
        except OSError as error:
            self._failure = f"it could not be started: {error}"
            return
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            try:
                reading = json.loads(line)
                if "event" in reading:
                    self._recorder.event(str(reading["event"]))
                else:
                    self._recorder.sample(reading)
                    self._samples += 1
            except (ValueError, KeyError, TypeError):
                continue
            self._recorder.flush_if_due()

    def processes(self) -> list[int]:
        """Return its process id, if it has started."""
        return [self._process.pid] if self._process else []

    def stop(self) -> str | None:
        """End it; return why there is no sample, if there is none."""
        if self._process is None:
            return self._failure
        ended = self._process.poll()
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._thread.join(timeout=5)
        if self._samples:
            return None
        return f"the sampler ended with exit code {ended}" if ended is not None else "the sampler gave no sample"
