"""Submit what is missing or failed of a plan, in the order of its chain, each thing once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.files import write_atomically
from hpcrl.formats.ledger import Ledger, Submission
from hpcrl.formats.plan import LOGS, Job, Plan, format_tasks, read_plan
from hpcrl.slurm.client import Slurm
from hpcrl.submit.status import DONE, LIVE, TaskStatus, task_statuses

Report = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Submitted:
    """What one call of :func:`submit` did: how many tasks went out, under which job ids."""

    tasks: int
    jobs: list[tuple[str, str]]
    already: int


@dataclass(frozen=True)
class Budget:
    """The most that a plan may ask for; None: no limit."""

    core_hours: float | None = None
    gpu_hours: float | None = None


def check_budget(plan: Plan, budget: Budget) -> None:
    """Refuse a plan over budget.

    Raises:
        UsageError: it asks for more.
    """
    for name, most in (("core_hours", budget.core_hours), ("gpu_hours", budget.gpu_hours)):
        asked = float(plan.totals[name])
        if most is not None and asked > most:
            words = name.replace("_", "-")
            raise UsageError(
                f"the plan asks for up to {asked:g} {words}, over the {most:g} allowed: shorten `time`, or take cells out"
            )


def test_only(directory: Path, slurm: Slurm) -> dict[str, str | None]:
    """Ask the scheduler about every script of a plan; return its objection, or None, by script."""
    plan = read_plan(directory)
    return {job.script: slurm.test_only(Path(job.script), directory) for job in plan.jobs}


def submit(directory: Path, executor: str, slurm: Slurm, budget: Budget, report: Report) -> Submitted:
    """Submit the tasks of a plan that were never submitted, or whose last attempt failed.

    Raises:
        UsageError: the plan is over budget.
        HpcrlError: the scheduler refuses a job. What was submitted before stays submitted and is in the ledger.
    """
    plan = read_plan(directory)
    check_budget(plan, budget)
    _write_shim(directory)
    ledger = Ledger(directory, create=True)
    try:
        resolve_intents(ledger, slurm)
        statuses = task_statuses(plan, ledger, slurm)
        wanted: list[tuple[Job, list[int], set[int]]] = []
        already = 0
        for job in plan.jobs:
            kept = {task for task in range(job.count) if _is_kept(statuses[job.name].get(task))}
            if job.stage == "cells":
                already += len(kept)
            elif wanted:
                # Something before this stage runs again, so this one does too, unless it still waits.
                kept = {task for task in kept if statuses[job.name][task].state in LIVE}
            missing = [task for task in range(job.count) if task not in kept]
            if missing:
                wanted.append((job, missing, kept))
        if not wanted:
            return Submitted(0, [], already)
        if executor == "slurm":
            jobs = _submit_slurm(directory, plan, ledger, wanted, _live_ids(statuses), report)
        else:
            jobs = _submit_local(directory, ledger, wanted, report)
        tasks = sum(len(missing) for job, missing, _ in wanted if job.stage == "cells")
        return Submitted(tasks, jobs, already)
    finally:
        ledger.close()


def _is_kept(status: TaskStatus | None) -> bool:
    return status is not None and (status.state in LIVE or status.state in DONE)


def _live_ids(statuses: dict[str, dict[int, TaskStatus]]) -> dict[str, list[str]]:
    """Return, by job of the plan, the Slurm ids under which some of its tasks still wait or run."""
    return {
        name: sorted({each.key.partition("_")[0] for each in tasks.values() if each.state in LIVE and each.key})
        for name, tasks in statuses.items()
    }


def resolve_intents(ledger: Ledger, slurm: Slurm) -> None:
    """Settle submissions that were written down but never confirmed, by asking Slurm for their token."""
    for each in ledger.submissions():
        if each.state != "intent":
            continue
        job_id = slurm.find_by_comment(each.token) if each.executor == "slurm" else None
        if job_id is not None:
            ledger.submitted(each.token, job_id)
        else:
            ledger.refused(each.token, "the process that submitted it ended before the scheduler had it")


def _write_shim(directory: Path) -> None:
    """Write ./hpcrl, by which the later stages call the installation that submitted them."""
    path = directory / "hpcrl"
    python = sys.executable.replace("'", "'\\''")
    text = f"#!/bin/sh\nexec '{python}' -m hpcrl \"$@\"\n"
    if not path.exists() or path.read_text() != text:
        write_atomically(path, text, executable=True)


def _submit_slurm(
    directory: Path,
    plan: Plan,
    ledger: Ledger,
    wanted: list[tuple[Job, list[int], set[int]]],
    live: dict[str, list[str]],
    report: Report,
) -> list[tuple[str, str]]:
    from hpcrl.submit.executors import ScriptExecutor

    executor = ScriptExecutor(directory)
    ids: dict[str, list[str]] = {name: list(found) for name, found in live.items()}
    done: list[tuple[str, str]] = []
    previous: list[str] = []
    total = sum(len(missing) for _, missing, _ in wanted)
    count = 0
    for job, missing, kept in wanted:
        claimed = ledger.claim(job.name, missing, "slurm", kept)
        if claimed is None:
            continue
        options = [f"--comment={claimed.token}", *_dependency(plan, job, ids, previous)]
        if job.array and len(claimed.tasks) < job.count:
            throttle = f"%{job.throttle}" if job.throttle else ""
            options.append(f"--array={format_tasks(claimed.tasks)}{throttle}")
        if "%" in str(directory.resolve()):
            # Slurm would expand it in the names of logs, which lie below the plan.
            where = str(directory.resolve()).replace("%", "%%")
            options.append(f"--output={where}/{LOGS}/{'%x-%A_%a' if job.array else '%x-%j'}.out")
        try:
            job_id = executor.submit_script((directory / job.script).read_text(), options)
        except HpcrlError as error:
            ledger.refused(claimed.token, str(error))
            raise HpcrlError(f"{job.script}: {error}") from None
        ledger.submitted(claimed.token, job_id)
        ids.setdefault(job.name, []).append(job_id)
        previous = [job_id]
        done.append((job.name, job_id))
        count += len(claimed.tasks)
        report(count, total, job.name)
    return done


def _dependency(plan: Plan, job: Job, ids: dict[str, list[str]], previous: list[str]) -> list[str]:
    """Return sbatch's options that make a job wait for what its stage needs."""

    def of_stage(stage: str) -> list[str]:
        return [job_id for each in plan.jobs if each.stage == stage for job_id in ids.get(each.name, [])]

    rules: list[str] = []
    if job.stage == "cells":
        rules += [f"afterok:{job_id}" for job_id in of_stage("environments")]
        if plan.chain == "sequential":
            rules += [f"afterany:{job_id}" for job_id in previous]
    elif job.stage == "collect":
        rules += [f"afterany:{job_id}" for job_id in of_stage("cells")]
    elif job.stage == "report":
        rules += [f"afterok:{job_id}" for job_id in of_stage("collect")]
    if not rules:
        return []
    return [f"--dependency={','.join(dict.fromkeys(rules))}", "--kill-on-invalid-dep=yes"]


def _submit_local(
    directory: Path, ledger: Ledger, wanted: list[tuple[Job, list[int], set[int]]], report: Report
) -> list[tuple[str, str]]:
    from hpcrl.submit.detached import start_queue

    claimed: list[Submission] = []
    for job, missing, kept in wanted:
        if (claim := ledger.claim(job.name, missing, "local", kept)) is not None:
            claimed.append(claim)
    seconds = sum(float(job.resources["time"]) * len(missing) for job, missing, _ in wanted)
    start_queue(directory, [each.token for each in claimed], minutes=int(seconds / 60) + 60)
    report(len(claimed), len(claimed), "")
    process = {each.token: str(each.job_id) for each in ledger.submissions()}
    return [(each.job, process[each.token]) for each in claimed]
