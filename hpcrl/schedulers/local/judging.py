"""The state of one attempt, from the local queue's entries in the ledger, the fence and the processes."""

from __future__ import annotations

from collections.abc import Sequence

from hpcrl.formats.attempts import read_holder
from hpcrl.formats.processes import lives
from hpcrl.formats.queues import last_words, read_queues
from hpcrl.formats.submission import Submission
from hpcrl.schedulers.evidence import BREATHES, Evidence
from hpcrl.schedulers.states import (
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


def judge(evidence: Evidence, made: Sequence[Submission]) -> Of:
    """Return the function that decides the state of an attempt."""
    queues = read_queues(evidence.directory)

    def of(unit: str, own: str | None, attempt: int, submission: Submission, index: int) -> TaskStatus:
        state, reason = state_of(unit, own, attempt, submission, index)
        return TaskStatus(state, attempt, submission, index, None, reason)

    def state_of(
        unit: str, own: str | None, attempt: int, submission: Submission, index: int
    ) -> tuple[str, str | None]:
        state = evidence.view.jobs[submission.name][""][index].state
        alive = queues.get(submission.token, False)
        abandoned = not alive and (state in LIVE or state == "CANCELLING")
        reason = None
        if state == "CANCELLING":
            begun = evidence.progress.has_begun(unit, attempt) or unit == submission.job
            state = ("RUNNING" if begun else "PENDING") if alive else CANCELLED
            reason = "it is being cancelled" if alive else None
        if submission.state == "intent" and not alive:
            return UNCONFIRMED, "the local queue may not have started: `hpcrl submit` finds out"
        if submission.state == "gone":
            return LOST, submission.message
        if abandoned and evidence.progress.has_begun(unit, attempt):
            if lives(read_holder(evidence.directory, unit, attempt)):
                return "RUNNING", "its local queue has ended, but the cell still runs"
            if state in LIVE and own in OF_OUTCOME:
                return OF_OUTCOME[own], None
            if state in LIVE and unit in evidence.breathing:
                return UNKNOWN, BREATHES
        if abandoned and state in LIVE:
            words = last_words(evidence.directory, submission.token)
            return LOST, f"the local queue has ended without it{f': {words}' if words else ''}"
        if unit != submission.job:
            if state == COMPLETED and own is None and not evidence.has_footer(unit):
                return FAILED, "its script succeeded, but its record has no footer"
            if state in (COMPLETED, FAILED) and own in OF_OUTCOME:
                return OF_OUTCOME[own], None
        return state, reason

    return of
