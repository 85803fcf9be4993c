"""How far a plan is: the state of each task, from the ledger and one look at the scheduler, whatever the size."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from hpcrl.formats.ledger import Ledger
from hpcrl.formats.plan import LOGS, RECORDS, Cell, Job, Plan, find_cell, read_cells, read_plan
from hpcrl.slurm.client import RUNNING, WAITING, Slurm
from hpcrl.submit.local import local_attempt, local_log

LIVE = frozenset(RUNNING | WAITING)
DONE = frozenset({"COMPLETED"})
NEVER = "NOT SUBMITTED"


@dataclass(frozen=True)
class TaskStatus:
    """One task of a job: the state of its newest attempt, and where that attempt's log and records are."""

    state: str
    key: str | None
    attempt: str | None
    log: Path | None
    reason: str | None = None


@dataclass(frozen=True)
class CellStatus:
    """One cell with its state; `progress` is (steps, of how many) while it runs."""

    cell: Cell
    job: str
    task: int
    status: TaskStatus
    progress: tuple[int, int] | None = None


@dataclass(frozen=True)
class PlanStatus:
    """A whole plan."""

    plan: Plan
    cells: list[CellStatus]
    stages: dict[str, TaskStatus]

    def counts(self) -> dict[str, int]:
        return dict(Counter(each.status.state for each in self.cells).most_common())

    def failed(self) -> list[CellStatus]:
        return [each for each in self.cells if is_failure(each.status.state)]

    def live(self) -> bool:
        """Tell whether anything still waits or runs."""
        return any(each.state in LIVE for each in [*(cell.status for cell in self.cells), *self.stages.values()])

    def causes(self) -> dict[str, int]:
        """Count failed stages and cells by cause."""
        stages = [each for each in self.stages.values() if is_failure(each.state)]
        return dict(Counter(_cause(each) for each in [*stages, *(cell.status for cell in self.failed())]).most_common())


def is_failure(state: str) -> bool:
    return state not in LIVE and state not in DONE and state != NEVER


def _cause(status: TaskStatus) -> str:
    return f"{status.state}: {status.reason}" if status.reason else status.state


def task_statuses(plan: Plan, ledger: Ledger, slurm: Slurm) -> dict[str, dict[int, TaskStatus]]:
    """Return, by job and task, the state of the newest submission; tasks never submitted are absent."""
    submissions = [each for each in ledger.submissions() if each.state != "refused"]
    ids = [each.job_id for each in submissions if each.executor == "slurm" and each.job_id]
    states = slurm.states(ids)
    local = {(each.token, each.task): each for each in ledger.local_tasks()}
    statuses: dict[str, dict[int, TaskStatus]] = {job.name: {} for job in plan.jobs}
    jobs = {job.name: job for job in plan.jobs}
    for each in submissions:
        job = jobs[each.job]
        alive = each.executor != "local" or (each.job_id is not None and psutil.pid_exists(int(each.job_id)))
        for task in each.tasks:
            if each.executor == "local":
                entry = local.get((each.token, task))
                state = entry.state if entry else "PENDING"
                if state == "CANCELLING":
                    state = "RUNNING" if alive else "CANCELLED"
                if state in LIVE and not alive and each.state == "submitted":
                    state = "LOST"
                log = _local_log(job, each.token, task)
                statuses[each.job][task] = TaskStatus(state, None, local_attempt(each.token, task), log)
            else:
                key = f"{each.job_id}_{task}" if job.array else str(each.job_id)
                found = states.get(key)
                state = found.state if found else "PENDING"
                reason = found.reason if found and state in WAITING else None
                name = f"{job.name}-{key}.out"
                statuses[each.job][task] = TaskStatus(state, key, None, Path(LOGS) / name, reason)
    return statuses


def _local_log(job: Job, token: str, task: int) -> Path:
    return local_log(Path(), job, token, task)


def plan_status(directory: Path, slurm: Slurm) -> PlanStatus:
    """Look at a plan as a whole: one call each of sacct and squeue, and the records of running and failed cells."""
    plan = read_plan(directory)
    ledger = Ledger(directory)
    try:
        statuses = task_statuses(plan, ledger, slurm)
    finally:
        ledger.close()
    never = TaskStatus(NEVER, None, None, None)
    jobs = plan.cell_jobs()
    cells: list[CellStatus] = []
    iterator = read_cells(directory)
    for job in jobs:
        for task in range(job.count):
            cells.append(CellStatus(next(iterator), job.name, task, statuses[job.name].get(task, never)))
    stages = {
        job.stage: _with_last_line(directory, statuses[job.name].get(0, never))
        for job in plan.jobs
        if job.stage != "cells"
    }
    interesting = {each.cell.id for each in cells if each.status.state in RUNNING or is_failure(each.status.state)}
    details = _from_records(directory, interesting)
    return PlanStatus(plan, [_detailed(directory, each, details.get(each.cell.id)) for each in cells], stages)


def _with_last_line(directory: Path, status: TaskStatus) -> TaskStatus:
    """Give a task that runs or failed the last line of its log: what it is at, or why it failed."""
    telling = is_failure(status.state) or status.state in RUNNING
    if not telling or status.log is None or not (directory / status.log).is_file():
        return status
    lines = (directory / status.log).read_text(errors="replace").strip().splitlines()
    return replace(status, reason=lines[-1] if lines else None)


@dataclass(frozen=True)
class _Detail:
    progress: tuple[int, int] | None
    reason: str | None


def _detailed(directory: Path, status: CellStatus, detail: _Detail | None) -> CellStatus:
    if detail is None:  # it has no record: if it failed, then before that
        return (
            replace(status, status=_with_last_line(directory, status.status))
            if is_failure(status.status.state)
            else status
        )
    if status.status.state in RUNNING:
        return replace(status, progress=detail.progress)
    return replace(status, status=replace(status.status, reason=status.status.reason or detail.reason))


def _from_records(directory: Path, cells: set[str]) -> dict[str, _Detail]:
    """Read progress and reason from the newest record of some cells."""
    from hpcrl.formats.record import RecordError, read_frames

    newest: dict[str, Path] = {}
    for path in (directory / RECORDS).glob("*.r0.rec"):
        cell = path.name.partition(".")[0]
        if cell in cells and (cell not in newest or path.stat().st_mtime > newest[cell].stat().st_mtime):
            newest[cell] = path
    details = {}
    for cell, path in newest.items():
        progress, reason = None, None
        try:
            for frame in read_frames(path, frozenset({"progress", "footer"})):
                if frame.kind == "progress":
                    step, total, _ = frame.payload["table"][-1]
                    progress = (int(step), int(total))
                else:
                    reason = frame.payload.get("reason")
        except (RecordError, KeyError, TypeError, ValueError, IndexError, OverflowError):
            continue
        details[cell] = _Detail(progress, reason)
    return details


def find_log(directory: Path, cell: str, slurm: Slurm) -> Path:
    """Return the log of a cell's newest attempt.

    Raises:
        UsageError: there is no such cell, or it has not run yet.
    """
    from hpcrl.errors import UsageError

    plan = read_plan(directory)
    found, job, task = find_cell(directory, plan, cell)
    ledger = Ledger(directory)
    try:
        status = task_statuses(plan, ledger, slurm)[job.name].get(task)
    finally:
        ledger.close()
    if status is None or status.log is None or not (directory / status.log).is_file():
        raise UsageError(f"cell {found.id}: has no log yet: {status.state if status else NEVER}")
    return directory / status.log


def cancel(directory: Path, slurm: Slurm, cells: list[str]) -> int:
    """Cancel the cells named, or everything that still waits or runs; return how many tasks that were."""
    plan = read_plan(directory)
    ledger = Ledger(directory)
    try:
        statuses = task_statuses(plan, ledger, slurm)
        chosen = {(job.name, task) for _, job, task in (find_cell(directory, plan, cell) for cell in cells)}
        keys: list[str] = []
        count = 0
        tokens = {
            local_attempt(each.token, task): (each.token, task) for each in ledger.submissions() for task in each.tasks
        }
        for name, tasks in statuses.items():
            for task, status in tasks.items():
                if status.state not in LIVE or (cells and (name, task) not in chosen):
                    continue
                count += 1
                if status.key:
                    keys.append(status.key)
                elif status.attempt:
                    ledger.local_cancel(*tokens[status.attempt])
        # Whole arrays in one word each: thousands of keys do not fit on a command line.
        slurm.cancel(keys if cells else sorted({key.partition("_")[0] for key in keys}))
        return count
    finally:
        ledger.close()
