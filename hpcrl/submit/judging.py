"""The state of one attempt, from the ledger, the fence and Slurm's answers.

The states are Slurm's, and these:

    NOT SUBMITTED   no attempt was granted
    UNCONFIRMED     sbatch did not say whether it took the job, or Slurm does not list it yet
    UNKNOWN         Slurm did not answer
    LOST            neither queued nor accounted nor recorded, a minute after the submission: Slurm has forgotten it

Slurm's state counts only for a job with the submission's token in its name. COMPLETED needs the record's footer; when
the cell has written it, it creates a file in ``attempts/``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from hpcrl.formats.attempts import COMPLETED as OUTCOME_COMPLETED
from hpcrl.formats.attempts import Progress, read_holder, time_of_start
from hpcrl.formats.files import server_time
from hpcrl.formats.ledger import Ledger
from hpcrl.formats.plan import LOGS, RECORDS
from hpcrl.formats.processes import lives
from hpcrl.formats.queues import last_words, read_queues
from hpcrl.formats.submission import ELSEWHERE, SUBMISSIONS, Submission
from hpcrl.slurm.client import RUNNING, WAITING, JobState, Slurm, Tasks, View
from hpcrl.slurm.reasons import explain

COMPLETED, CANCELLED, FAILED = "COMPLETED", "CANCELLED", "FAILED"
NEVER, UNCONFIRMED, UNKNOWN, LOST = "NOT SUBMITTED", "UNCONFIRMED", "UNKNOWN", "LOST"
LIVE = frozenset(RUNNING | WAITING)
UNSETTLED = frozenset({UNCONFIRMED, UNKNOWN})
LOST_SECONDS = 60.0
_BREATHES = "its job cannot be found, but its record was written a moment ago: it may still run; look again in a minute"
FULL = 0.9  # share of the requested memory above which an end without an error counts as out of memory
# States from the outcome in a cell's own record, for an attempt that did not complete.
_OUTCOMES = {
    "failed": FAILED,
    "diverged": FAILED,
    "oom": "OUT_OF_MEMORY",
    "timeout": "TIMEOUT",
    "preempted": "PREEMPTED",
}
_MORE_TELLING = frozenset({"OUT_OF_MEMORY", "TIMEOUT"})
_NO_LOG = "0:53"


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
        """The Slurm job, as ``JOBID_INDEX``."""
        if self.submission is None or self.submission.executor != "slurm":
            return None
        ids = [self.slurm.job_id] if self.slurm else list(self.submission.job_ids)
        if not ids:
            return None
        return f"{ids[0]}_{self.index}" if self.submission.array else ids[0]


# TaskStatus._make in a third of its time: a large plan makes 100,000. All six fields must be given.
new_status: Callable[[tuple[str, int, Submission, int, JobState | None, str | None]], TaskStatus]
new_status = partial(tuple.__new__, TaskStatus)
Candidate = tuple[int, Submission, int]  # attempt, submission, index in its array


class Judge:
    """Decides the state of an attempt from all known facts."""

    def __init__(
        self,
        directory: Path,
        ledger: Ledger | None,
        progress: Progress,
        view: View,
        submissions: Sequence[Submission],
        slurm: Slurm,
    ) -> None:
        self._slurm = slurm
        self._directory = directory
        self._progress = progress
        self._view = view
        self._ledger = ledger
        self._local = {(each.token, each.task): each for each in ledger.local_tasks()} if ledger else {}
        self._queues = read_queues(directory) if any(each.executor == "local" for each in submissions) else {}
        self._ages = _ages(directory, submissions)
        self._jobs = {each.token: list(view.jobs.get(each.name, {}).values()) for each in submissions}
        self._tasks = {token: _merged(jobs) for token, jobs in self._jobs.items()}
        self._completed: set[str] | None = None

    def best(self, unit: str, own: str | None, candidates: list[Candidate]) -> TaskStatus:
        """Choose among the submissions that grant one attempt: the fence lets only one of them run it."""
        return min((self.of(unit, own, *candidate) for candidate in candidates), key=_rank)

    def of(self, unit: str, own: str | None, attempt: int, submission: Submission, index: int) -> TaskStatus:
        """Decide the state of one submission's part in an attempt.

        Args:
            own: the end of the attempt according to the fence.
        """
        if submission.state == ELSEWHERE:
            state, reason = self._of_original(unit, own, submission)
            return TaskStatus(state, attempt, submission, index, None, reason)
        if submission.executor == "local":
            state, reason = self._of_local(unit, attempt, own, submission, index)
            return TaskStatus(state, attempt, submission, index, None, reason)
        slurm = self._tasks[submission.token].get(index)
        if slurm is not None and slurm.state == "PENDING":  # most of a large plan
            reason = explain(slurm.reason) if slurm.reason else None
            return new_status(("PENDING", attempt, submission, index, slurm, reason))
        taken = own is not None or self._progress.has_begun(unit, attempt)
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
            if several and own in _OUTCOMES and own != "preempted":
                return _OUTCOMES[own], None
            if several and slurm.state in RUNNING and not taken:
                return "PENDING", "other cells of its array task run before it"
            return slurm.state, explain(slurm.reason) if slurm.state in WAITING and slurm.reason else None
        if slurm.state == COMPLETED and is_cell:
            if own in _OUTCOMES:
                return _OUTCOMES[own], None
            if self._has_footer(unit):
                return COMPLETED, None
            # This start was turned away if another one has the attempt, perhaps of a job with another name.
            other = read_holder(self._directory, unit, attempt).get("job")
            if other not in (None, f"{slurm.job_id}_{index}") and (
                self._age_of_start(unit, attempt) < LOST_SECONDS or unit in self._breathing
            ):
                return "RUNNING", f"job {other} runs it"
            return FAILED, "Slurm says COMPLETED, but its record has no footer"
        if own in _OUTCOMES and (several or _OUTCOMES[own] in _MORE_TELLING):
            return _OUTCOMES[own], None
        if slurm.state == FAILED and own is None and taken:
            if f"{slurm.job_id}_{index}" in self._starved:
                return "OUT_OF_MEMORY", None
            if (share := self._memory_share(unit)) > FULL:
                return "OUT_OF_MEMORY", f"Slurm says FAILED; its last sample had {share:.0%} of the memory asked for"
        # The queue reports an end before accounting has the exit code.
        if not taken and (slurm.exit_code == _NO_LOG or not (slurm.exit_code or self._has_logs)):
            return (
                slurm.state,
                "Slurm could not open its log or enter the plan directory: was logs/ or the plan removed?",
            )
        return slurm.state, None

    def _of_original(self, unit: str, own: str | None, submission: Submission) -> tuple[str, str | None]:
        if own in _OUTCOMES:
            return _OUTCOMES[own], None
        return (COMPLETED, None) if self._has_footer(unit) else (LOST, submission.message)

    def _missing(
        self, unit: str, own: str | None, taken: bool, submission: Submission, index: int
    ) -> tuple[str, str | None]:
        if own in _OUTCOMES and own != "preempted":
            return _OUTCOMES[own], None
        if self._has_footer(unit):
            return COMPLETED, None
        if (submission.token, index) in self._cancelled and not taken:
            return CANCELLED, None
        if self._view.queue or (self._view.accounting and not self._view.unaccounted):
            return UNKNOWN, None
        if submission.state == "intent":
            return UNCONFIRMED, "sbatch did not say whether it took the job: `hpcrl submit` finds out"
        if submission.state == "gone":
            return LOST, submission.message
        if self._jobs[submission.token] and not taken:
            return CANCELLED, "it was cancelled before it started"
        if self._ages[submission.token] < LOST_SECONDS:
            return UNCONFIRMED, "Slurm does not list it yet"
        if taken and unit in self._breathing:
            return UNKNOWN, _BREATHES
        return LOST, "Slurm has lost it: it is not in the queue, not in accounting, and its record has no end"

    def _of_local(
        self, unit: str, attempt: int, own: str | None, submission: Submission, index: int
    ) -> tuple[str, str | None]:
        entry = self._local.get((submission.token, index))
        state = entry.state if entry else "PENDING"
        alive = self._queues.get(submission.token, False)
        abandoned = not alive and (state in LIVE or state == "CANCELLING")
        reason = None
        if state == "CANCELLING":
            begun = self._progress.has_begun(unit, attempt) or unit == submission.job
            state = ("RUNNING" if begun else "PENDING") if alive else CANCELLED
            reason = "it is being cancelled" if alive else None
        if submission.state == "intent" and not alive:
            return UNCONFIRMED, "the local queue may not have started: `hpcrl submit` finds out"
        if submission.state == "gone":
            return LOST, submission.message
        if abandoned and self._progress.has_begun(unit, attempt):
            if lives(read_holder(self._directory, unit, attempt)):
                return "RUNNING", "its local queue has ended, but the cell still runs"
            if state in LIVE and own in _OUTCOMES:
                return _OUTCOMES[own], None
            if state in LIVE and unit in self._breathing:
                return UNKNOWN, _BREATHES
        if abandoned and state in LIVE:
            words = last_words(self._directory, submission.token)
            return LOST, f"the local queue has ended without it{f': {words}' if words else ''}"
        if unit != submission.job:
            if state == COMPLETED and own is None and not self._has_footer(unit):
                return FAILED, "its script succeeded, but its record has no footer"
            if state in (COMPLETED, FAILED) and own in _OUTCOMES:
                return _OUTCOMES[own], None
        return state, reason

    @cached_property
    def _has_logs(self) -> bool:
        return (self._directory / LOGS).is_dir()

    @cached_property
    def _cancelled(self) -> set[tuple[str, int]]:
        return self._ledger.cancelled() if self._ledger else set()

    @cached_property
    def _breathing(self) -> set[str]:
        """The cells whose record was written a moment ago: they run, even if Slurm does not know them."""
        fresh = set()
        for path in (self._directory / RECORDS).glob("*.rec"):
            with suppress(OSError):
                if self._now - path.stat().st_mtime < LOST_SECONDS:
                    fresh.add(path.name.partition(".")[0])
        return fresh

    @cached_property
    def _now(self) -> float:
        return _now(self._directory)

    def _age_of_start(self, unit: str, attempt: int) -> float:
        """Return how many seconds ago an attempt was taken: its record is written seconds later."""
        try:
            return self._now - time_of_start(self._directory, unit, attempt)
        except OSError:
            return math.inf

    @cached_property
    def _starved(self) -> set[str]:
        """The array tasks with a step that ran out of memory, according to Slurm. It is asked when a task failed without an error."""
        states = [each for jobs in self._jobs.values() for tasks in jobs for each in tasks.values()]
        return self._slurm.out_of_memory(sorted({each.job_id for each in states if each.state == FAILED}))

    def _has_footer(self, unit: str) -> bool:
        """Read the records of cells that have ended without a file in ``attempts/``, which is rare."""
        if self._completed is None:
            self._completed = _completed_by_record(self._directory)
        return unit in self._completed

    def _memory_share(self, unit: str) -> float:
        """Return the used share of its requested memory before a cell ended without a footer."""
        from hpcrl.formats.record import SAMPLE_COLUMNS, RecordError, read_frames

        share = 0.0
        for path in islice((self._directory / RECORDS).glob(f"{unit}.*.rec"), 20):
            asked = 0.0
            try:
                for frame in read_frames(path, frozenset({"header", "samples"})):
                    if frame.kind == "header":
                        resources = frame.payload["resources"]
                        asked = resources["memory"] * 2.0**20 * resources.get("tasks", 1) / resources.get("nodes", 1)
                    elif asked:
                        last = dict(zip(SAMPLE_COLUMNS, frame.payload["table"][-1], strict=True))
                        used = [last[name] for name in ("cgroup_memory", "pss", "rss") if last[name] > 0]
                        share = max([share, *(each / asked for each in used[:1])])
            except (
                RecordError,
                OSError,
                LookupError,
                TypeError,
                ValueError,
                ArithmeticError,
                AttributeError,
                RecursionError,
            ):
                continue
        return share


def _merged(jobs: Sequence[Tasks]) -> Tasks:
    """Return one state for each index of an array that Slurm has under several ids; a live one comes first."""
    if len(jobs) == 1:
        return jobs[0]
    merged: Tasks = {}
    for tasks in jobs:
        merged |= {index: found for index, found in tasks.items() if index not in merged or found.state in LIVE}
    return merged


def _rank(status: TaskStatus) -> int:
    if status.state == COMPLETED:
        return 0
    if status.state in RUNNING:
        return 1
    if status.state in WAITING:
        return 2
    if status.state in UNSETTLED:
        return 3
    return 5 if status.state in (LOST, CANCELLED) or status.reason else 4


def _now(directory: Path) -> float:
    """Return the time by the one clock of the file system, or, where nothing can be written there, by this machine's."""
    try:
        return server_time(directory)
    except OSError:
        return time.time()


def _ages(directory: Path, submissions: Sequence[Submission]) -> dict[str, float]:
    """Return the seconds since each submission, by the clock of the file system."""
    now = _now(directory)
    ages = {}
    for each in submissions:
        try:
            ages[each.token] = now - (directory / SUBMISSIONS / each.token).stat().st_mtime
        except OSError:
            ages[each.token] = time.time() - each.at
    return ages


def _completed_by_record(directory: Path) -> set[str]:
    from hpcrl.formats.record import RecordError, read_frames

    found = set()
    for path in (directory / RECORDS).glob("*.r0.rec"):
        try:
            for frame in read_frames(path, frozenset({"footer"})):
                if frame.payload.get("outcome") == OUTCOME_COMPLETED:
                    found.add(path.name.partition(".")[0])
        except (RecordError, OSError, KeyError, TypeError, ValueError, RecursionError):
            continue
    return found
