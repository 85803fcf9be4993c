"""Where the time of a training loop goes, cheaply enough to leave on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

# `compile` is all work done once before the first step; `fused` is a compiled loop whose parts cannot be timed;
# `send`, `receive` and `wait` are those of learner and actors; `prepare` and `check` are the steps around a command; `tensorboard` and `tracking` write events and
# send values to MLflow while the agent trains;
# `profile` starts and stops a profiler, and writes its file; `checkpoint` writes those that only a learner with actors keeps while it trains.
PHASES = (
    "setup", "compile", "env_step", "act", "replay", "transfer", "update", "communicate", "fused", "evaluate", "other",
    "prepare", "check", "tensorboard", "tracking", "send", "receive", "wait", "profile", "checkpoint",
)  # fmt: skip
BEFORE_TRAINING = ("setup", "compile")
NOT_TRAINING = (*BEFORE_TRAINING, "evaluate", "prepare", "check", "profile", "checkpoint")


class PhaseClock:
    """A clock that is always in exactly one phase, so that the phases add up to its running time.

    A switch costs one reading of the clock. Asynchronous devices are not synchronised at a switch: the remaining work
    of an accelerator counts in the phase that waits for it.
    """

    def __init__(self, phase: str = "setup") -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.counts = dict.fromkeys(PHASES, 0)
        self.phase = phase
        self._since = perf_counter()
        self.counts[phase] = 1

    def switch(self, phase: str) -> None:
        """Leave the present phase for another."""
        now = perf_counter()
        self.seconds[self.phase] += now - self._since
        self.counts[phase] += 1
        self.phase = phase
        self._since = now

    @contextmanager
    def aside(self, phase: str) -> Iterator[None]:
        """Spend a while in another phase, then return to the present one."""
        before = self.phase
        self.switch(phase)
        try:
            yield
        finally:
            self.switch(before)
            self.counts[before] -= 1  # it was not entered anew

    def move(self, seconds: float, phase: str) -> None:
        """Count so many of the present phase's seconds as another's; at most those that it has."""
        self.total()  # brings them up to date
        seconds = min(seconds, self.seconds[self.phase])
        self.seconds[self.phase] -= seconds
        self.seconds[phase] += seconds

    def in_phase(self) -> float:
        """Return the seconds since the last switch."""
        return perf_counter() - self._since

    def so_far(self) -> tuple[dict[str, float], dict[str, int]]:
        """Return seconds and counts of the phases entered so far, including the present one; any thread may call this."""
        phase, since = self.phase, self._since
        seconds = {name: total + (perf_counter() - since) * (name == phase) for name, total in self.seconds.items()}
        return {name: total for name, total in seconds.items() if total}, {
            name: self.counts[name] for name, total in seconds.items() if total
        }

    def total(self) -> float:
        """Return the seconds of all phases so far."""
        self.switch(self.phase)
        self.counts[self.phase] -= 1
        return sum(self.seconds.values())


def switch_cost(switches: int = 20_000) -> float:
    """Return the seconds that one switch costs on this machine, measured on empty phases."""
    clock = PhaseClock()
    start = perf_counter()
    for _ in range(switches // 2):
        clock.switch("act")
        clock.switch("other")
    return (perf_counter() - start) / switches
