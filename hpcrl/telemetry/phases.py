"""Where the time of a training loop goes, cheaply enough to leave on."""

from __future__ import annotations

from time import perf_counter

PHASES = ("setup", "env_step", "act", "replay", "update", "evaluate", "other")


class PhaseClock:
    """A clock that is always in exactly one phase, so that the phases sum to the time it ran.

    Switching costs one reading of the clock. Asynchronous devices are not synchronised at a switch: work that
    an accelerator still has to do is counted in the phase that waits for it.
    """

    def __init__(self, phase: str = "setup") -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.counts = dict.fromkeys(PHASES, 0)
        self._phase = phase
        self._since = perf_counter()
        self.counts[phase] = 1

    def switch(self, phase: str) -> None:
        """Leave the present phase for another."""
        now = perf_counter()
        self.seconds[self._phase] += now - self._since
        self.counts[phase] += 1
        self._phase = phase
        self._since = now

    def total(self) -> float:
        """Return the seconds of all phases so far."""
        self.switch(self._phase)
        self.counts[self._phase] -= 1
        return sum(self.seconds.values())
