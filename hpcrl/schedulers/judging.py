"""The state of an attempt, as its scheduler's package decides it from all known facts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hpcrl.formats.submission import ELSEWHERE, Submission
from hpcrl.schedulers.evidence import Evidence
from hpcrl.schedulers.interface import at_work, by_scheduler
from hpcrl.schedulers.states import CANCELLED, COMPLETED, LOST, OF_OUTCOME, UNSETTLED, TaskStatus
from hpcrl.slurm.client import RUNNING, WAITING


class Judge:
    """Decides the state of attempts."""

    def __init__(self, evidence: Evidence, made: Sequence[Submission]) -> None:
        """Args: made: every submission that is asked about."""
        self._evidence = evidence
        self._of = {name: at_work(name).judge(evidence, mine) for name, mine in by_scheduler(made).items()}

    def best(self, unit: str, own: str | None, candidates: Iterable[tuple[int, Submission, int]]) -> TaskStatus:
        """Choose among the submissions that grant one attempt: the fence lets only one of them run it."""
        return min((self.of(unit, own, *candidate) for candidate in candidates), key=_rank)

    def of(self, unit: str, own: str | None, attempt: int, submission: Submission, index: int) -> TaskStatus:
        """Decide the state of one submission's part in an attempt.

        Args:
            own: the end of the attempt according to the fence.
            index: place in the submission's array.
        """
        if submission.state == ELSEWHERE:
            state, reason = self._of_original(unit, own, submission)
            return TaskStatus(state, attempt, submission, index, None, reason)
        return self._of[submission.executor](unit, own, attempt, submission, index)

    def _of_original(self, unit: str, own: str | None, submission: Submission) -> tuple[str, str | None]:
        if own in OF_OUTCOME:
            return OF_OUTCOME[own], None
        return (COMPLETED, None) if self._evidence.has_footer(unit) else (LOST, submission.message)


def _rank(status: TaskStatus) -> tuple[int, int]:
    """Return the key of the most telling state; of equal ones that of the newest submission comes first."""
    if status.state == COMPLETED:
        rank = 0
    elif status.state in RUNNING:
        rank = 1
    elif status.state in WAITING:
        rank = 2
    elif status.state in UNSETTLED:
        rank = 3
    else:
        rank = 5 if status.state in (LOST, CANCELLED) or status.reason else 4
    return rank, -status.submission.number if status.submission else 0
