"""The signals that end an attempt early: USR2 before the time limit, TERM for preemption and cancelling."""

from __future__ import annotations

import signal
from types import FrameType


class Interrupt:
    """Remembers the first signal; a training loop asks :attr:`caught` at each step."""

    def __init__(self) -> None:
        self.caught: str | None = None
        for number in (signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, self._catch)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        if self.caught is None:
            self.caught = signal.Signals(number).name.removeprefix("SIG")

    def stop(self) -> bool:
        """Tell whether a signal has come."""
        return self.caught is not None
