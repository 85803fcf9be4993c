"""How an attempt ended, from what each of its ranks recorded. Datasets and `hpcrl status` decide it by the same rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

FAILURES = ("failed", "oom", "diverged")
# Outcomes of runs that were ended from outside, or that have not ended: not by a fault of their own.
NOT_BY_ITSELF = ("running", "cancelled", "preempted", "node_fail", "lost")
# The worst comes first. Ranks that another rank's end takes along are preempted, or fail without a cause of their own.
_WORST = (
    "oom",
    "diverged",
    "failed",
    "timeout",
    "cancelled",
    "node_fail",
    "lost",
    "preempted",
    "running",
    "pruned",
    "completed",
)


class RankEnd(NamedTuple):
    """How a rank ended. `killed`: a signal killed it. `time`: when it ended, in seconds of any clock that the ranks share."""

    rank: int
    outcome: str
    reason: str | None
    killed: bool
    time: float


def place_of(outcome: str) -> int:
    """Return the place of an outcome among all, the worst first."""
    return _WORST.index(outcome) if outcome in _WORST else 0


def cause(ends: Sequence[RankEnd], ranks: int) -> RankEnd | None:
    """Return the end that decides for the whole attempt, None if the ranks that have not ended may still decide.

    A rank that fails ends the others, and these often fail, too, with an error that says no more than that. So the worst outcome counts, as
    among the files of :mod:`hpcrl.formats.attempts`, and of several ranks with that outcome the first that failed. Its reason names the rank.

    Args:
        ends: of the ranks that have ended. ranks: the number of ranks with a record.
    """
    failures = [end for end in ends if end.outcome in FAILURES]
    if failures:
        # The other ranks may notice that one was killed before its end is written.
        first = min(failures, key=lambda end: (place_of(end.outcome), not end.killed, end.time))
        return first._replace(reason=f"rank {first.rank}: {first.reason}") if ranks > 1 else first
    if len(ends) < ranks:
        return None
    return min(ends, key=lambda end: place_of(end.outcome), default=None)
