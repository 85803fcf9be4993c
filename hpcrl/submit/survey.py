"""The newest attempt of each cell of a plan, and its state (:mod:`hpcrl.schedulers.judging`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcrl.errors import UsageError
from hpcrl.formats.attempts import ATTEMPTS, Progress, read_attempts, read_holder
from hpcrl.formats.attempts import COMPLETED as OUTCOME_COMPLETED
from hpcrl.formats.ledger import Ledger
from hpcrl.formats.memory import without_gc
from hpcrl.formats.plan import RECORDS, Job, Plan, cell_ids, check_cells, find_job
from hpcrl.formats.processes import lives
from hpcrl.formats.queues import stopped_queues
from hpcrl.formats.submission import ELSEWHERE, Submission
from hpcrl.schedulers.evidence import Evidence
from hpcrl.schedulers.interface import look
from hpcrl.schedulers.judging import Judge
from hpcrl.schedulers.states import COMPLETED, LIVE, TaskStatus, new_status
from hpcrl.slurm.client import WAITING, Slurm, View
from hpcrl.slurm.reasons import is_stuck

Candidate = tuple[int, Submission, int]  # attempt, submission, index in its array


@dataclass(frozen=True)
class Survey:
    """Everything that is known about a plan.

    Args:
        units: cell id, or name of a stage's job -> its status; one that was never submitted is absent.
        progress: the content of the fence.
        notes: one line for each command that did not answer, and for other facts that a user should know.
        answered: whether Slurm answered, or did not need to be asked.
        held: array tasks that Slurm holds for ever although their cells have completed.
    """

    units: dict[str, TaskStatus]
    progress: Progress
    notes: list[str]
    answered: bool = True
    ids: dict[str, Sequence[str]] = field(default_factory=dict)
    held: list[str] = field(default_factory=list)


@without_gc()
def survey(directory: Path, plan: Plan, ledger: Ledger | None, slurm: Slurm) -> Survey:
    """Survey the whole plan: one listing of ``attempts/``, and one call each of squeue and sacct.

    Args:
        ledger: None where nothing was submitted yet.
    """
    submissions = ledger.taken() if ledger else []
    ids = _unit_ids(directory, plan, submissions)
    progress = read_attempts(directory)
    newest, rivals = _newest(submissions, ids)
    ended = progress.ended
    outcomes = [ended.get(attempt, {}).get(unit) for unit, (attempt, _, _) in newest.items()]
    # Slurm is asked only about cells that have not completed.
    asked: dict[str, Submission] = {}
    last: Submission | None = None
    for (_, made, _), outcome in zip(newest.values(), outcomes, strict=True):
        if made is not last and outcome != OUTCOME_COMPLETED:
            asked[made.token] = last = made
    asked |= {
        made.token: made
        for unit, several in rivals.items()
        if progress.outcome(unit, newest[unit][0]) != OUTCOME_COMPLETED
        for _, made, _ in several
    }
    ours = [submission for submission in submissions if submission.state != ELSEWHERE]
    view = look(
        slurm,
        ledger,
        [submission for submission in ours if submission.token in asked],
        [submission for submission in ours if submission.token not in asked],
    )
    judge = Judge(Evidence(directory, ledger, progress, view, slurm, ids), list(asked.values()))
    units: dict[str, TaskStatus] = {}
    for (unit, candidate), outcome in zip(newest.items(), outcomes, strict=True):
        if outcome == OUTCOME_COMPLETED:
            units[unit] = new_status((COMPLETED, *candidate, None, None))
        elif unit in rivals:
            units[unit] = judge.best(unit, outcome, [candidate, *rivals[unit]])
        else:
            units[unit] = judge.of(unit, outcome, *candidate)
    _add_forgotten(directory, units, newest, progress, ids)
    for unit, outcome in progress.byhand.items():
        if outcome == OUTCOME_COMPLETED and (unit not in units or units[unit].state not in {COMPLETED, *LIVE}):
            units[unit] = TaskStatus(COMPLETED, reason="run by hand")
    notes = [*view.notes(), *_gone(directory, plan, submissions)]
    if progress.turned_away:
        notes.append(
            f"second starts that were turned away: {progress.turned_away} ({directory}/attempts/*.again-*); nothing ran twice"
        )
    if progress.unmeasured:
        notes.append(
            f"attempts whose telemetry did not run: {progress.unmeasured}: their times and outcomes count, their CPU and memory are missing "
            "(column notes of the dataset's cells says why)"
        )
    notes += [
        f"the local queue (process {pid}) is stopped: it starts and ends nothing until `kill -CONT {pid}`"
        for pid in stopped_queues(directory)
    ]
    return Survey(units, progress, notes, not view.notes(), ids, _held(submissions, view, units, ids))


def _gone(directory: Path, plan: Plan, submissions: Sequence[Submission]) -> list[str]:
    """Name the files of the plan that were changed or removed, so that the states of its cells may be wrong."""
    try:
        check_cells(directory, plan)
        notes = []
    except UsageError as error:
        notes = [str(error)]
    begun = next((directory / RECORDS).glob("*.rec"), None) is not None
    for name, wanted in ((RECORDS, bool(submissions)), (ATTEMPTS, begun)):
        if wanted and not (directory / name).is_dir():
            notes.append(
                f"{directory / name}: is gone: cells that completed may be shown as failed or lost: restore it from a copy"
            )
    return notes


def _held(
    submissions: Sequence[Submission],
    view: View,
    units: Mapping[str, TaskStatus],
    ids: Mapping[str, Sequence[str]],
) -> list[str]:
    """Return the tasks of completed cells that wait for ever, for example because a node failed after the cell's end."""
    attempts = []
    for made in submissions:
        for tasks in view.jobs.get(made.name, {}).values():
            for index, state in tasks.items():
                if state.state not in WAITING or not is_stuck(state.reason):
                    continue
                cells = [units.get(ids[made.job][task]) for task, _ in made.entries_at(index)]
                if all(cell is not None and cell.state == COMPLETED for cell in cells):
                    attempts.append(made.attempt(index, state.job_id))
    return attempts


def _add_forgotten(
    directory: Path,
    units: dict[str, TaskStatus],
    newest: Mapping[str, Candidate],
    progress: Progress,
    ids: Mapping[str, Sequence[str]],
) -> None:
    """Add cells that completed or run by a submission that was lost with the ledger, if some cells have no known one."""
    cells = sum(len(names) for job, names in ids.items() if names != (job,))
    stages = sum(names == (job,) and job in newest for job, names in ids.items())
    if len(newest) - stages >= cells:
        return
    for attempt, begun in sorted(progress.begun.items()):
        for unit in begun - newest.keys():
            if progress.outcome(unit, attempt) is None and lives(read_holder(directory, unit, attempt)):
                units[unit] = TaskStatus(
                    "RUNNING", attempt, reason="it runs on this machine, and its submission was lost"
                )
    for attempt, outcomes in sorted(progress.ended.items()):
        for unit, outcome in outcomes.items():
            if outcome == OUTCOME_COMPLETED and unit not in newest:
                units[unit] = TaskStatus(COMPLETED, attempt)


def _newest(
    submissions: Sequence[Submission], ids: Mapping[str, Sequence[str]]
) -> tuple[dict[str, Candidate], dict[str, list[Candidate]]]:
    """Return the submission that grants the newest attempt of each unit and, if there are several, the others."""
    newest: dict[str, Candidate] = {}
    rivals: dict[str, list[Candidate]] = {}
    for submission in submissions:
        names = ids[submission.job]
        granted = {names[task]: (attempt, submission, index) for index, task, attempt in submission.places()}
        for unit in granted.keys() & newest.keys():
            before, now = newest[unit], granted[unit]
            if now[0] < before[0]:
                del granted[unit]
            elif now[0] > before[0]:
                rivals.pop(unit, None)
            else:
                rivals.setdefault(unit, []).append(before)
        newest |= granted
    return newest, rivals


def _unit_ids(directory: Path, plan: Plan, submissions: Sequence[Submission]) -> dict[str, Sequence[str]]:
    """Return the cell of each task by job, with the jobs of older generations of the plan."""
    ids: dict[str, Sequence[str]] = {}
    wanted = {submission.job for submission in submissions} - {job.name for job in plan.jobs}
    jobs: list[tuple[Plan, Job]] = [(plan, job) for job in plan.jobs]
    jobs += [find_job(directory, name) for name in sorted(wanted)]
    by_file: dict[str, list[str]] = {}
    for made, job in jobs:
        if job.stage != "cells":
            ids[job.name] = (job.name,)
            continue
        every = by_file.get(made.cells_file)
        if every is None:
            every = by_file[made.cells_file] = cell_ids(directory, made)
        ids[job.name] = every[job.first : job.first + job.count]
    return ids
