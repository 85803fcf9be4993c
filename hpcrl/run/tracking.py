"""Send the values of a cell to MLflow while it trains: from a process beside the training, or inside its loop.

``python -m hpcrl.run.tracking`` is the process beside. It reads lines of JSON: first the run's :class:`Named`, then points of
metrics, at last the outcome. A line that it prints is for the record.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any

from hpcrl.errors import count
from hpcrl.formats.events import EVALUATION
from hpcrl.formats.mlflow import METRICS_AT_ONCE, metrics_of_step
from hpcrl.run.mlflow import MlflowError, Named, Server
from hpcrl.telemetry.processes import name_runner

INLINE = "mlflow-inline"
DURING = "values were sent to MLflow during the measurement"
_EVERY_SECONDS, _LAST_SECONDS = 5.0, 15.0  # between two batches; for what is left at the end
_BEFORE_REQUEUE = 3.0  # seconds for what is left of an attempt that goes on elsewhere
_CALL_SECONDS = 10.0  # of a call that has begun before the end
_MOST = 200_000  # points that wait for a server that is away; later ones are given up
_STATUS = {"completed": "FINISHED", "pruned": "FINISHED", "preempted": "KILLED"}
Say = Callable[[str], None]


class Points:
    """Makes points of metrics from rows: one for each evaluation, and one of each metric for all episodes that ended at one step."""

    def __init__(self, started: float) -> None:
        """Take the time at which the record began, in Unix seconds."""
        self._started = started
        self._held: list[Sequence[float]] = []  # the episodes of the newest step, which may not be all

    def take(self, kind: str, row: Sequence[float]) -> list[dict[str, Any]]:
        """Return the points that a row completes: those of the step before, if an episode is the first of its step."""
        if kind != "episodes":
            return self._points(row, {EVALUATION: row[2]})
        complete = self.rest() if self._held and self._held[0][0] != row[0] else []
        self._held.append(row)
        return complete

    def rest(self) -> list[dict[str, Any]]:
        """Return the points of the newest step, after its last episode."""
        held, self._held = self._held, []
        if not held:
            return []
        return self._points(held[-1], metrics_of_step([row[2] for row in held], [row[3] for row in held]))

    def _points(self, row: Sequence[float], values: Mapping[str, float]) -> list[dict[str, Any]]:
        at = {"timestamp": int((self._started + row[1]) * 1000), "step": int(row[0])}
        # JSON has no infinite numbers.
        return [{"key": name, "value": value, **at} for name, value in values.items() if math.isfinite(value)]


def _results(started: float, footer: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str, int]:
    """Return the results of an attempt, MLflow's word for its outcome, and its end in Unix milliseconds."""
    end = int((started + footer["wall_time"]) * 1000)
    results = [
        {"key": name, "value": float(value), "timestamp": end, "step": 0}
        for name, value in footer.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    ]
    return results, _STATUS.get(footer["outcome"], "FAILED"), end


def _seconds_left(footer: Mapping[str, Any]) -> float:
    return _BEFORE_REQUEUE if footer["outcome"] == "preempted" else _LAST_SECONDS


class InlineTracking:
    """Sends values from the training loop, and waits for the answers: what this costs is a part of what is measured.

    An evaluation is a request. A step at which episodes ended is two, one with the mean return and one with length and number, as in the
    article on Doors, which sent two in each iteration.

    Raises:
        MlflowError: the server does not answer, or refuses the run.
    """

    phase = "tracking"

    def __init__(self, server: Server, named: Named, started: float, say: Say) -> None:
        self._server, self._started, self._say = server, started, say
        self._points = Points(started)
        self._run: str | None = server.begin(named)
        self.ended: str | None = None  # why nothing is sent any more

    def add(self, _samples: Iterable[Sequence[float]], kind: str, row: Sequence[float], _resumed: int | None) -> None:
        self._send(self._points.take(kind, row))

    def flush(self) -> None:
        """Nothing waits here but a step that may not be complete."""

    def close(
        self, _samples: Iterable[Sequence[float]], footer: Mapping[str, Any], _phases: Mapping[str, float]
    ) -> None:
        self._server.deadline = time.monotonic() + _seconds_left(footer)
        self._send(self._points.rest())
        results, status, end = _results(self._started, footer)
        self._try(partial(self._server.log, metrics=results))
        self._try(partial(self._server.end, status=status, time=end))

    def _send(self, points: Sequence[dict[str, Any]]) -> None:
        for request in (points[:1], points[1:]):
            if request:
                self._try(partial(self._server.log, metrics=request))

    def _try(self, action: Callable[[str], None]) -> None:
        if self._run is None:
            return
        try:
            action(self._run)
        except MlflowError as error:
            self._run = None
            self.ended = f"tracking ended: {error}"
            self._say(self.ended)


class TrackingBeside:
    """Hands the values to a process of hpcrl's, which sends them every few seconds. A server that is away stops nothing.

    Args:
        environment: of that process.
    """

    phase = "tracking"

    def __init__(self, named: Named, started: float, say: Say, environment: Mapping[str, str]) -> None:
        self._started, self._say = started, say
        self._points = Points(started)
        self._rows: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "hpcrl.run.tracking"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=environment,
        )
        self._hand(asdict(named))
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def add(self, _samples: Iterable[Sequence[float]], kind: str, row: Sequence[float], _resumed: int | None) -> None:
        self._rows += self._points.take(kind, row)

    def flush(self) -> None:
        if self._rows:
            self._hand({"metrics": self._rows})
            self._rows = []

    def close(
        self, _samples: Iterable[Sequence[float]], footer: Mapping[str, Any], _phases: Mapping[str, float]
    ) -> None:
        self._rows += self._points.rest()
        self.flush()
        results, status, end = _results(self._started, footer)
        seconds = _seconds_left(footer)
        self._hand({"metrics": results, "status": status, "time": end, "seconds": seconds})
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            code = self._process.wait(timeout=seconds + (0 if seconds < _CALL_SECONDS else _CALL_SECONDS) + 2)
            wrong = f"its process ended with exit code {code}" if code else None
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            wrong = "the server took too long, and the last values are not there"
        self._listener.join(timeout=1)
        if wrong:
            self._say(f"tracking: {wrong}")

    def processes(self) -> list[int]:
        """Return its process."""
        return [self._process.pid]

    def _hand(self, content: dict[str, Any]) -> None:
        with suppress(OSError):  # it has died, which is said at the end
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(content) + "\n")
            self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._say(line.strip())


class Sender:
    """Sends what waits, in batches. What could not be sent waits for the next time."""

    def __init__(self, server: Server, named: Named) -> None:
        self._server, self._named = server, named
        self._run: str | None = None
        self._told = False
        self._waiting: deque[dict[str, Any]] = deque()  # one thread appends, the other takes
        self._given = self._lost = 0

    def take(self, points: Sequence[dict[str, Any]]) -> None:
        """Let points wait; any thread may call this."""
        room = max(0, _MOST - len(self._waiting))
        self._waiting.extend(points[:room])
        self._given += len(points)
        self._lost += len(points[room:])

    def send(self) -> bool:
        """Send everything that waits; return False if the server did not take it. The first failure is printed."""
        try:
            if self._run is None:
                self._run = self._server.begin(self._named)
            while self._waiting:
                batch = [self._waiting[place] for place in range(min(METRICS_AT_ONCE, len(self._waiting)))]
                self._server.log(self._run, batch)
                for _ in batch:
                    self._waiting.popleft()
        except MlflowError as error:
            self._tell(f"tracking: {error}; the training continues, and hpcrl export --to mlflow adds what is missing")
            return False
        return True

    def hurry(self, seconds: float) -> None:
        """Let no call begin or wait after this time; any thread may call this."""
        self._server.deadline = time.monotonic() + seconds

    def finish(self, status: str, end: int) -> None:
        """Send the rest until the deadline, and close the run."""
        while not self.send():
            if time.monotonic() + 1 > self._server.deadline:
                break
            time.sleep(1)
        if missing := len(self._waiting) + self._lost:
            _print(f"tracking: {count(missing, 'value')} of {self._given} not sent")
        if self._run is not None and not self._waiting:
            try:
                self._server.end(self._run, status, end)
            except MlflowError as error:
                self._tell(f"tracking: {error}")

    def _tell(self, text: str) -> None:
        if not self._told:
            self._told = True
            _print(text)


def _print(text: str) -> None:
    with suppress(OSError):  # the training was killed
        print(text, flush=True)


def _beside() -> None:
    name_runner()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):  # meant for the training
        signal.signal(number, signal.SIG_IGN)
    sender = Sender(Server(os.environ), Named(**json.loads(sys.stdin.readline())))
    over = threading.Event()
    last: dict[str, Any] = {}

    def read() -> None:
        for line in sys.stdin:
            with suppress(ValueError):  # the training was killed while it wrote this line
                content = json.loads(line)
                sender.take(content.pop("metrics"))
                last.update(content)
        sender.hurry(last.get("seconds", _LAST_SECONDS))
        over.set()

    threading.Thread(target=read, daemon=True).start()
    sender.send()
    while not over.wait(_EVERY_SECONDS):
        sender.send()
    sender.finish(last.get("status", "KILLED"), last.get("time", int(time.time() * 1000)))


if __name__ == "__main__":
    _beside()
