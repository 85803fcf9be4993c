"""Steps that one rank of a cell runs for all. The others wait for marker files in the plan directory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hpcrl.formats.attempts import Start, has_step, note_step
from hpcrl.run.training import Ended

PREPARED = "prepared"
FAILED = "failed"
_LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class Together:
    """One rank of a start."""

    directory: Path
    start: Start
    rank: int
    ranks: int

    def say(self, mark: str) -> None:
        note_step(self.directory, self.start, mark)

    def wait_until_prepared(self, caught: Callable[[], str | None]) -> Ended | None:
        """Wait for the first rank. Return the end of this rank if the command must not start."""
        while not has_step(self.directory, self.start, PREPARED):
            if has_step(self.directory, self.start, FAILED):
                return Ended("failed", "prepare: failed on the first rank", {})
            if signalled := caught():
                return Ended("preempted", f"{signalled} came during prepare, and the command was not started", {})
            time.sleep(_LOOK_SECONDS)
        return None

    def wait_for_all(self, caught: Callable[[], str | None]) -> bool:
        """Wait until the command has ended on every rank. Tell whether it succeeded on all."""
        while not has_step(self.directory, self.start, FAILED):
            if all(has_step(self.directory, self.start, str(rank)) for rank in range(self.ranks)):
                return True
            if caught():
                return False
            time.sleep(_LOOK_SECONDS)
        return False
