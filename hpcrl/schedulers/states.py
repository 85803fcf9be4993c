"""The states of an attempt. They are Slurm's, and these:

NOT SUBMITTED   no attempt was granted
UNCONFIRMED     sbatch did not say whether it took the job, or Slurm does not list it yet
UNKNOWN         Slurm did not answer
LOST            neither queued nor accounted nor recorded, a minute after the submission: Slurm has forgotten it
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from hpcrl.formats.submission import Submission
from hpcrl.slurm.client import RUNNING, WAITING, JobState

COMPLETED, CANCELLED, FAILED = "COMPLETED", "CANCELLED", "FAILED"
NEVER, UNCONFIRMED, UNKNOWN, LOST = "NOT SUBMITTED", "UNCONFIRMED", "UNKNOWN", "LOST"
LIVE = frozenset(RUNNING | WAITING)
BEING_CANCELLED = "it is being cancelled"  # the reason of a live state
UNSETTLED = frozenset({UNCONFIRMED, UNKNOWN})
# States from the outcome in a cell's own record, for an attempt that did not complete.
OF_OUTCOME = {
    "failed": FAILED,
    "diverged": FAILED,
    "oom": "OUT_OF_MEMORY",
    "timeout": "TIMEOUT",
    "preempted": "PREEMPTED",
}
# Ends of an array task that are also those of its cells that had not begun. Other ends have their cause in a cell that ran.
OF_ALL_CELLS = frozenset({CANCELLED, "NODE_FAIL", "BOOT_FAIL", "PREEMPTED"})


class TaskStatus(NamedTuple):
    """The newest attempt of a cell (or of a stage's job): its state and where it is.

    Args:
        attempt: the number granted, 0 for none.
        index: place in the submission's array.
        slurm: Slurm's answer about it, if there is one.
    """

    state: str
    attempt: int = 0
    submission: Submission | None = None
    index: int = 0  # type: ignore[assignment]  # not tuple.index
    slurm: JobState | None = None
    reason: str | None = None

    @property
    def key(self) -> str | None:
        """The job of a site's queue, as ``JOBID_INDEX``."""
        if self.submission is None or self.submission.scheduler.here:
            return None
        ids = [self.slurm.job_id] if self.slurm else list(self.submission.job_ids)
        if not ids:
            return None
        return self.submission.attempt(self.index, ids[0])

    @property
    def log(self) -> str | None:
        """The path of its log in the plan directory."""
        if self.submission is None:
            return None
        return self.submission.log(self.index, self.slurm.job_id if self.slurm else None)


# TaskStatus._make in a third of its time: a large plan makes 100,000. All six fields must be given.
new_status: Callable[[tuple[str, int, Submission, int, JobState | None, str | None]], TaskStatus]
new_status = partial(tuple.__new__, TaskStatus)
# A unit (cell, or name of a stage's job), the end of its attempt according to the fence, the attempt's number, the submission
# that grants it, and its index in the array -> its state.
Of = Callable[[str, str | None, int, Submission, int], TaskStatus]
