"""The signals that end an attempt early: USR2 before the time limit, TERM for preemption and cancelling."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from functools import partial
from types import FrameType

# Seconds after TERM until a rank that waits for another one is ended. mpirun would kill it without a word a second later
# (hpcrl.run.ranks).
_STUCK_SECONDS = 2.0


class Interrupt:
    """Stores the first signal. A training loop reads :attr:`caught` at each step.

    With several ranks (`ranks` > 1), one may wait inside a library for another that has died. Python then
    never handles the signal, so a thread watches for it and ends the process.
    """

    def __init__(self, ranks: int = 1) -> None:
        self.caught: str | None = None
        for number in (signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, self._catch)
        if ranks > 1:
            reading, writing = os.pipe()
            os.set_blocking(writing, False)
            signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
            # A forked process of an environment has the pipe, too: its signals are not this rank's.
            os.register_at_fork(after_in_child=partial(signal.set_wakeup_fd, -1))
            threading.Thread(target=self._watch, args=(reading,), daemon=True).start()

    def _catch(self, number: int, frame: FrameType | None) -> None:
        if self.caught is None:
            self.caught = signal.Signals(number).name.removeprefix("SIG")

    def _watch(self, pipe: int) -> None:
        while signal.SIGTERM not in os.read(pipe, 1):
            pass
        self.wait(_STUCK_SECONDS)
        if self.caught is None:
            print("hpcrl: ended by TERM while waiting for another rank", file=sys.stderr, flush=True)
            os._exit(1)

    def stop(self) -> bool:
        """Tell whether a signal has come."""
        return self.caught is not None

    def wait(self, seconds: float) -> None:
        """Wait for a signal, at most so many seconds."""
        end = time.monotonic() + seconds
        while self.caught is None and time.monotonic() < end:
            time.sleep(0.05)
