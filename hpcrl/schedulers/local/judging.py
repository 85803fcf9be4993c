"""The state of one attempt, from the local queue's entries in the ledger, the fence and the processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcrl.formats.attempts import read_holder
from hpcrl.formats.processes import lives
from hpcrl.formats.queues import last_words, read_queues
from hpcrl.formats.submission import Submission
from hpcrl.schedulers.evidence import BREATHES, Evidence
from hpcrl.schedulers.states import (
    BEING_CANCELLED,
    CANCELLED,
    COMPLETED,
    FAILED,
    LIVE,
    LOST,
    OF_OUTCOME,
    UNCONFIRMED,
    UNKNOWN,
    Of,
    TaskStatus,
)
from hpcrl.slurm.client import JobState

# Of states of a task whose queue has ended.
_REASONS = {"RUNNING": "its local queue has ended, but the cell still runs", UNKNOWN: BREATHES}


def without_queue(task: JobState, alive: bool | None) -> str:
    """Return the state of a task that had not ended when its queue did.

    Args:
        alive: whether the process that began it lives; None if that cannot be seen from this host.
    """
    if alive is not False:
        return "RUNNING" if alive else UNKNOWN
    return CANCELLED if task.reason == BEING_CANCELLED else LOST


def holder_of(directory: Path, unit: str, attempt: int, submission: Submission) -> dict[str, Any]:
    """Return what the start of an attempt wrote; nothing if a later submission, which granted the attempt again, began it."""
    holder = read_holder(directory, unit, attempt)
    return holder if holder.get("token", submission.token) == submission.token else {}


def judge(evidence: Evidence, made: Sequence[Submission]) -> Of:
    """Return the function that decides the state of an attempt."""
    queues = read_queues(evidence.directory)

    def of(unit: str, own: str | None, attempt: int, submission: Submission, index: int) -> TaskStatus:
        state, reason = state_of(unit, own, attempt, submission, index)
        return TaskStatus(state, attempt, submission, index, None, reason)

    def state_of(
        unit: str, own: str | None, attempt: int, submission: Submission, index: int
    ) -> tuple[str, str | None]:
        task = evidence.view.jobs[submission.name][""][index]
        works = queues.get(submission.token, False)
        if submission.state == "intent" and not works:
            return UNCONFIRMED, "the local queue may not have started: `hpcrl submit` finds out"
        if submission.state == "gone":
            return LOST, submission.message
        if task.state in LIVE and not works:
            has_begun = evidence.progress.has_begun(unit, attempt)
            holder = holder_of(evidence.directory, unit, attempt, submission) if has_begun else {}
            begun = bool(holder)
            own = own if begun else None
            alive = begun and lives(holder)
            if alive is None and (own in OF_OUTCOME or unit not in evidence.breathing):
                alive = False
            state = without_queue(task, alive)
            if state != LOST:
                return state, _REASONS.get(state)
            if own in OF_OUTCOME:
                return OF_OUTCOME[own], None
            if begun and unit in evidence.breathing:
                return UNKNOWN, BREATHES
            words = last_words(evidence.directory, submission.token)
            return LOST, f"the local queue has ended without it{f': {words}' if words else ''}"
        if unit != submission.job:
            if task.state == COMPLETED and own is None and not evidence.has_footer(unit):
                return FAILED, "its script succeeded, but its record has no footer"
            if task.state in (COMPLETED, FAILED) and own in OF_OUTCOME:
                return OF_OUTCOME[own], None
        return task.state, task.reason

    return of
