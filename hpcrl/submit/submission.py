"""Submit the missing and failed cells of a plan, in the order of its chain, each attempt once."""

from __future__ import annotations

import getpass
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcrl.catalogue.registry import schedulers
from hpcrl.errors import HpcrlError, UsageError, cells_and_stages, count
from hpcrl.formats.attempts import ATTEMPTS
from hpcrl.formats.files import open_of_stranger, write_atomically
from hpcrl.formats.lease import Lease, Say, held_lease
from hpcrl.formats.ledger import Ledger
from hpcrl.formats.mlflow import ADDRESS
from hpcrl.formats.plan import LOGS, RECORDS, Job, Plan, cells_at, check_cells, has_digest, read_plan
from hpcrl.formats.queues import FOLDER as QUEUES
from hpcrl.formats.queues import QUEUE_LOGS
from hpcrl.formats.submission import SUBMISSIONS, Submission, grant
from hpcrl.schedulers.interface import Desk, Jobs, Report, at_work
from hpcrl.schedulers.states import COMPLETED, LIVE, UNSETTLED, TaskStatus
from hpcrl.schedulers.wanted import Ask, Wanted
from hpcrl.slurm.client import WAITING, Slurm
from hpcrl.slurm.reasons import LAUNCH_FAILED, word_of
from hpcrl.submit.selection import MISSING_OR_FAILED, NOT_SUBMITTED, Budget, Choice, Selection, check_budget
from hpcrl.submit.settling import open_ledger, settle
from hpcrl.submit.survey import Survey, survey

_LAUNCHERS = "launchers"
_NO_VARIABLES = "#SBATCH --export=NONE"


@dataclass(frozen=True)
class Submitted:
    """The result of one call of :func:`submit`.

    Args:
        tasks: cells that were submitted.
        jobs: (job of the plan, the scheduler's id) of each hand-over.
        already: cells that wait, run or have completed.
        waiting: cells for which the site's queue has no room yet.
        left: reason why failed cells were not retried -> number of cells.
    """

    tasks: int
    jobs: Jobs
    already: int
    waiting: int = 0
    left: dict[str, int] = field(default_factory=dict)


def test_only(directory: Path, slurm: Slurm) -> dict[str, str | None]:
    """Ask the scheduler about every script of a plan; return its objection, or None, by script."""
    plan = read_plan(directory)
    jobs = [job for job in plan.jobs if plan.is_wanted(job)]
    return {job.script: slurm.test_only(Path(job.script), directory) for job in jobs}


def submit(
    directory: Path,
    executor: str,
    slurm: Slurm,
    budget: Budget,
    report: Report,
    choice: Choice = MISSING_OR_FAILED,
    say: Say = lambda text: None,
) -> Submitted:
    """Submit the cells of a plan that were never submitted, or whose last attempt failed.

    One process at a time does this for a plan; others wait for it. Unconfirmed submissions of earlier calls are settled first.

    Raises:
        UsageError: the plan is over budget, or a cell does not exist.
        HpcrlError: the scheduler refuses a job, or does not say whether it accepted it. The ledger has what was submitted.
    """
    read_plan(directory)  # or it is none, and nothing must be left in it
    with held_lease(directory, "submit", say) as lease:
        plan = read_plan(directory)
        check_cells(directory, plan)
        _check_files(directory, plan)
        _check_tracking(directory, plan)
        _write_shim(directory)
        ledger = open_ledger(directory, plan, None if schedulers()[executor].here else slurm, choice.here, say)
        try:
            return _Submitting(directory, plan, ledger, lease, slurm, executor, report, say).run(choice, budget)
        finally:
            ledger.close()


def _check_files(directory: Path, plan: Plan) -> None:
    """Make sure that the files of every cell exist and were not edited, and that directories are directories.

    Raises:
        UsageError: something is missing, is not a regular file, or was edited.
    """
    for name in (*(job.script for job in plan.jobs), plan.worker):
        path = directory / name
        if not path.is_file():
            what = "is missing" if not path.exists() else "is not a regular file"
            raise UsageError(f"{path}: {what}: run `hpcrl plan` into this directory again to restore it")
        if not has_digest(path, plan.digests.get(name)):
            raise UsageError(
                f"{path}: was edited after the plan was made: change the template, the profile or the study instead, and run "
                "`hpcrl plan` into this directory again"
            )
    for name in (LOGS, RECORDS, ATTEMPTS, SUBMISSIONS, QUEUES, QUEUE_LOGS, _LAUNCHERS):
        path = directory / name
        if path.exists() and not path.is_dir():
            raise UsageError(f"{path}: is not a directory: move it away, and run `hpcrl submit` again")


def _check_tracking(directory: Path, plan: Plan) -> None:
    """Make sure that cells that send their values to MLflow know its address.

    Raises:
        UsageError: they do not.
    """
    if plan.runs_command or not plan.study.tracks or ADDRESS in plan.workload.get("env", {}):
        return
    inherited = not any(_NO_VARIABLES in (directory / job.script).read_text() for job in plan.cell_jobs())
    if not (inherited and ADDRESS in os.environ):
        where = "here, or " if inherited else ""
        why = "" if inherited else f" (jobs on cluster {plan.cluster.name} inherit no variables)"
        raise UsageError(
            f"study {plan.study.name}: `tracking` sends values to a server of MLflow, but {ADDRESS} is not set: set it to http://HOST:PORT "
            f"{where}in the study's workload.env{why}"
        )


class _Submitting:
    """One call of :func:`submit`, under the lease."""

    def __init__(
        self,
        directory: Path,
        plan: Plan,
        ledger: Ledger,
        lease: Lease,
        slurm: Slurm,
        executor: str,
        report: Report,
        say: Say,
    ) -> None:
        self._directory, self._plan, self._ledger, self._lease = directory, plan, ledger, lease
        self._slurm, self._executor, self._say = slurm, executor, say
        self._desk = Desk(directory, plan, ledger, lease, slurm, report, say, self._intend)

    def run(self, choice: Choice, budget: Budget) -> Submitted:
        unsettled = settle(self._directory, self._ledger, self._slurm, self._say)
        if unsettled:
            raise HpcrlError(
                f"Slurm does not say whether it has {unsettled[0].name}: nothing more was submitted; run `hpcrl submit` again when it answers"
            )
        known = survey(self._directory, self._plan, self._ledger, self._slurm)
        for note in known.notes:
            self._say(note)
        for name in (LOGS, RECORDS):  # the survey reports one that was removed
            (self._directory / name).mkdir(exist_ok=True)
        self._release(known)
        self._warn_of_cancelled(known)
        selected = Selection(self._directory, self._plan, self._ledger, known, choice)
        cells = [part for job in self._plan.cell_jobs() for part in selected.of(job)]
        check_budget(self._directory, self._plan, self._ledger, cells, budget)
        before, after = self._builds(known, cells), self._stages(known, bool(cells))
        done, waiting = at_work(self._executor).hand_over(self._desk, known.units, before, cells, after)
        tasks = sum(len(part.tasks) for part in cells) - waiting
        return Submitted(tasks, done, selected.already, waiting, dict(selected.left))

    def _release(self, known: Survey) -> None:
        """Release cells whose first start failed on a node (the fence lets them run only once), and remove tasks of completed cells."""
        held = [
            status.key
            for status in known.units.values()
            if status.state in LIVE
            and status.slurm
            and word_of(status.slurm.reason or "") == LAUNCH_FAILED
            and status.key
        ]
        if held:
            self._say(f"released {count(len(held), 'task')} that Slurm held because the start had failed on a node")
            self._slurm.release(held)
        if known.held:
            self._say(f"removed {count(len(known.held), 'task')} that Slurm held although the cells have completed")
            self._slurm.cancel(known.held)

    def _warn_of_cancelled(self, known: Survey) -> None:
        """Say that cells still wait or run although they were cancelled: the scheduler takes its time, or the cancelling was interrupted."""
        cancelled = self._ledger.cancelled()
        live = {
            name
            for name, status in known.units.items()
            if status.state in LIVE and status.submission and (status.submission.token, status.index) in cancelled
        }
        if live:
            stages = len(live & {job.name for job in self._plan.jobs if job.stage != "cells"})
            self._say(
                f"cancelled, but not ended yet: {cells_and_stages(len(live) - stages, stages)}; run `hpcrl submit` again after the end, or `hpcrl cancel` "
                "if it was interrupted"
            )

    def _builds(self, known: Survey, cells: Sequence[Wanted]) -> Iterator[Wanted]:
        """Give the stage that builds the environments of some cells, unless its last run builds or has built all of them."""
        stage = next((job for job in self._plan.jobs if job.stage == "environments"), None)
        if stage is None or not cells:
            return
        needed = self._environments_of(cells)
        status = known.units.get(stage.name, NOT_SUBMITTED)
        made = status.submission
        if made and status.state in (COMPLETED, *LIVE, *UNSETTLED):
            if made.environments is None or needed <= {*made.environments}:
                return
            if status.state == COMPLETED:
                needed |= {*made.environments}  # so that the last run always names all that is built
        yield Wanted(stage, Ask(), [(0, status.attempt + 1)], tuple(sorted(needed)))

    def _environments_of(self, cells: Sequence[Wanted]) -> set[str]:
        """Return the keys of the environments of some cells. Those of one job may have several."""
        places = {part.job.first + task for part in cells if not part.job.environment for task, _ in part.tasks}
        several = cells_at(self._directory, self._plan, places).values() if places else ()
        return {part.job.environment for part in cells if part.job.environment} | {cell.environment for cell in several}

    def _stages(self, known: Survey, cells: bool) -> Iterator[Wanted]:
        """Give the stages after the cells that must run: those that never ran, and those that follow new cells."""
        again = cells
        for job in self._plan.jobs:
            if job.stage in ("environments", "cells", "feed") or not self._plan.is_wanted(job):
                continue
            status = known.units.get(job.name, NOT_SUBMITTED)
            if status.state in UNSETTLED or (status.state in (COMPLETED, *LIVE) and not again):
                continue
            if status.state in WAITING:
                # It waits only for earlier cells, and must also wait for the new ones.
                self._withdraw(job, status)
            again = True
            yield Wanted(job, Ask(), [(0, status.attempt + 1)])

    def _withdraw(self, job: Job, status: TaskStatus) -> None:
        """Cancel a waiting stage if it belongs to this user; another user's stage runs after the cells that it waits for."""
        made = status.submission
        if made is None:
            return
        if made.scheduler.here or made.user == _user():
            at_work(made.executor).cancel(self._directory, self._ledger, self._slurm, {job.name: status})
        else:
            self._say(f"{job.name}: job {status.key} of {made.user} is not changed; another job follows the new cells")

    def _intend(self, wanted: Wanted) -> Submission:
        self._lease.check()
        return self._ledger.intend(
            Submission(
                token="",
                number=0,
                plan=self._plan.id,
                job=wanted.job.name,
                executor=self._executor,
                granted=grant(wanted.tasks),
                array=wanted.job.array,
                cells_per_task=1 if schedulers()[self._executor].here else wanted.job.cells_per_task,
                user=_user(),
                host=socket.gethostname(),
                directory=str(self._directory.resolve()),
                time=wanted.ask.time,
                memory=wanted.ask.memory,
                exclude=wanted.ask.exclude,
                cause=wanted.ask.cause,
                environments=wanted.environments,
            )
        )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


# Variables that the later stages' installation needs too, on sites whose jobs inherit no variables.
_CARRIED = ("HPCRL_PATH", "HPCRL_SITE", "HPCRL_ENVIRONMENTS", "XDG_CONFIG_HOME")


def _write_shim(directory: Path) -> None:
    """Write the launcher of this user's later stages: it calls the installation that submitted them."""
    path = directory / _LAUNCHERS / str(os.getuid())
    carried = [f"export {name}={_quoted(os.environ[name])}\n" for name in _CARRIED if name in os.environ]
    text = f'#!/bin/sh\n{"".join(carried)}exec {_quoted(sys.executable)} -m hpcrl "$@"\n'
    try:
        with open_of_stranger(path, "rb") as file:
            if file.read() == text.encode():
                return
    except OSError:
        pass
    write_atomically(path, text, executable=True)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
