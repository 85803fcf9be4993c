"""The state of one attempt, from Slurm's answers, the ledger and the fence.

Slurm's state counts only for a job with the submission's token in its name. COMPLETED needs the record's footer; when
the cell has written it, it creates a file in ``attempts/``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property

from hpcrl.formats.attempts import read_holder
from hpcrl.formats.submission import Submission
from hpcrl.schedulers.evidence import BREATHES, Evidence
from hpcrl.schedulers.states import (
    CANCELLED,
    COMPLETED,
    FAILED,
    LIVE,
    LOST,
    OF_ALL_CELLS,
    OF_OUTCOME,
    UNCONFIRMED,
    UNKNOWN,
    Of,
    TaskStatus,
    new_status,
)
from hpcrl.slurm.client import RUNNING, WAITING, JobState, Tasks, View
from hpcrl.slurm.reasons import explain

FULL = 0.9  # share of the requested memory above which an end without an error counts as out of memory
_MORE_TELLING = frozenset({"OUT_OF_MEMORY", "TIMEOUT"})
_NO_LOG = "0:53"


def judge(evidence: Evidence, made: Sequence[Submission]) -> Of:
    """Return the function that decides the state of an attempt."""
    return _Judge(evidence, made).of


def was_cancelled(view: View, submission: Submission, index: int, cancelled: Collection[tuple[str, int]]) -> bool:
    """Tell whether a task that has not begun, and that Slurm does not list, was cancelled: Slurm forgets such tasks.

    By hpcrl, if the ledger has it among the `cancelled`; by others, if Slurm still has its job.
    """
    if view.unanswered:
        return False
    return (submission.token, index) in cancelled or bool(view.jobs.get(submission.name))


class _Judge:
    def __init__(self, evidence: Evidence, made: Sequence[Submission]) -> None:
        self._evidence = evidence
        self._jobs = {
            submission.token: list(evidence.view.jobs.get(submission.name, {}).values()) for submission in made
        }
        self._tasks = {token: _merged(jobs) for token, jobs in self._jobs.items()}

    def of(self, unit: str, own: str | None, attempt: int, submission: Submission, index: int) -> TaskStatus:
        slurm = self._tasks[submission.token].get(index)
        if slurm is not None and slurm.state == "PENDING":  # most of a large plan
            reason = explain(slurm.reason) if slurm.reason else None
            return new_status(("PENDING", attempt, submission, index, slurm, reason))
        taken = own is not None or self._evidence.progress.has_begun(unit, attempt)
        if slurm is not None:
            state, reason = self._of_slurm(unit, attempt, own, taken, submission, index, slurm)
        else:
            state, reason = self._missing(unit, own, taken, submission, index)
        return new_status((state, attempt, submission, index, slurm, reason))

    def _of_slurm(
        self,
        unit: str,
        attempt: int,
        own: str | None,
        taken: bool,
        submission: Submission,
        index: int,
        slurm: JobState,
    ) -> tuple[str, str | None]:
        several = submission.cells_per_task > 1
        is_cell = unit != submission.job
        if slurm.state in LIVE:
            if several and own in OF_OUTCOME and own != "preempted":
                return OF_OUTCOME[own], None
            if several and slurm.state in RUNNING and not taken:
                return "PENDING", "other cells of its array task run before it"
            return slurm.state, explain(slurm.reason) if slurm.state in WAITING and slurm.reason else None
        left_out = several and not taken and slurm.state not in OF_ALL_CELLS
        if left_out and self._evidence.has_begun_any(submission, index):
            return LOST, f"its array task ended before it began; Slurm says {slurm.state} of the task"
        if slurm.state == COMPLETED and is_cell:
            if own in OF_OUTCOME:
                return OF_OUTCOME[own], None
            if self._evidence.has_footer(unit):
                return COMPLETED, None
            # This start was turned away if another one has the attempt, perhaps of a job with another name.
            other = read_holder(self._evidence.directory, unit, attempt).get("job")
            if other not in (None, f"{slurm.job_id}_{index}") and (
                self._evidence.has_just_begun(unit, attempt) or unit in self._evidence.breathing
            ):
                return "RUNNING", f"job {other} runs it"
            return FAILED, "Slurm says COMPLETED, but its record has no footer"
        # The signal that ended a cell early came with the end of its array task, unless that end is the failure of another cell.
        of_another = several and (own != "preempted" or slurm.state == FAILED)
        if own in OF_OUTCOME and (of_another or OF_OUTCOME[own] in _MORE_TELLING):
            return OF_OUTCOME[own], None
        if slurm.state == FAILED and own is None and taken:
            if f"{slurm.job_id}_{index}" in self._starved:
                return "OUT_OF_MEMORY", None
            if (share := self._evidence.memory_share(unit)) > FULL:
                return "OUT_OF_MEMORY", f"Slurm says FAILED; its last sample had {share:.0%} of the memory asked for"
        # The queue reports an end before accounting has the exit code.
        if not taken and (slurm.exit_code == _NO_LOG or not (slurm.exit_code or self._evidence.has_logs)):
            return (
                slurm.state,
                "Slurm could not open its log or enter the plan directory: was logs/ or the plan removed?",
            )
        return slurm.state, None

    def _missing(
        self, unit: str, own: str | None, taken: bool, submission: Submission, index: int
    ) -> tuple[str, str | None]:
        if own in OF_OUTCOME and own != "preempted":
            return OF_OUTCOME[own], None
        if self._evidence.has_footer(unit):
            return COMPLETED, None
        if not taken and was_cancelled(self._evidence.view, submission, index, self._evidence.cancelled):
            return CANCELLED, "it was cancelled before it started"
        if self._evidence.view.unanswered:
            return UNKNOWN, None
        if submission.state == "intent":
            return UNCONFIRMED, "sbatch did not say whether it took the job: `hpcrl submit` finds out"
        if submission.state == "gone":
            return LOST, submission.message
        if self._evidence.is_new(submission):
            return UNCONFIRMED, "Slurm does not list it yet"
        if taken and unit in self._evidence.breathing:
            return UNKNOWN, BREATHES
        return LOST, "Slurm has lost it: it is not in the queue, not in accounting, and its record has no end"

    @cached_property
    def _starved(self) -> set[str]:
        """The array tasks with a step that ran out of memory, according to Slurm. It is asked when a task failed without an error."""
        states = [task for jobs in self._jobs.values() for tasks in jobs for task in tasks.values()]
        return self._evidence.slurm.out_of_memory(sorted({task.job_id for task in states if task.state == FAILED}))


def _merged(jobs: Sequence[Tasks]) -> Tasks:
    """Return one state for each index of an array that Slurm has under several ids; a live one comes first."""
    if len(jobs) == 1:
        return jobs[0]
    merged: Tasks = {}
    for tasks in jobs:
        merged |= {index: task for index, task in tasks.items() if index not in merged or task.state in LIVE}
    return merged
