"""Submit the missing and failed cells of a plan, in the order of its chain, each attempt once."""

from __future__ import annotations

import getpass
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hpcrl.errors import HpcrlError, UsageError, count
from hpcrl.formats.attempts import ATTEMPTS
from hpcrl.formats.files import open_of_stranger, write_atomically
from hpcrl.formats.lease import Lease, Say, held_lease
from hpcrl.formats.ledger import Ledger
from hpcrl.formats.plan import LOGS, RECORDS, Job, Plan, check_cells, find_cell, has_digest, read_plan
from hpcrl.formats.queues import FOLDER as QUEUES
from hpcrl.formats.queues import QUEUE_LOGS, orphans
from hpcrl.formats.submission import SUBMISSIONS, Submission, grant
from hpcrl.slurm.client import WAITING, NotInstalled, Refused, Slurm, Unconfirmed
from hpcrl.slurm.reasons import LAUNCH_FAILED, word_of
from hpcrl.submit.judging import COMPLETED, LIVE, UNSETTLED, TaskStatus
from hpcrl.submit.retrying import Ask
from hpcrl.submit.room import Room
from hpcrl.submit.selection import MISSING_OR_FAILED, NOT_SUBMITTED, Budget, Choice, Selection, Wanted, check_budget
from hpcrl.submit.settling import open_ledger, settle
from hpcrl.submit.survey import Survey, survey

if TYPE_CHECKING:
    from hpcrl.submit.executors import ScriptExecutor  # imports submitit, which is slow

Report = Callable[[int, int, str], None]
# How often a submission that Slurm did not get is submitted again before the user must do it.
_TRIES = 3
_LAUNCHERS = "launchers"


@dataclass(frozen=True)
class Submitted:
    """The result of one call of :func:`submit`.

    Args:
        tasks: cells that were submitted.
        jobs: (job of the plan, Slurm's id) of each sbatch call.
        already: cells that wait, run or have completed.
        waiting: cells for which the site's queue has no room yet.
        left: reason why failed cells were not retried -> number of cells.
    """

    tasks: int
    jobs: list[tuple[str, str]]
    already: int
    waiting: int = 0
    left: dict[str, int] = field(default_factory=dict)


def test_only(directory: Path, slurm: Slurm) -> dict[str, str | None]:
    """Ask the scheduler about every script of a plan; return its objection, or None, by script."""
    plan = read_plan(directory)
    jobs = [job for job in plan.jobs if job.stage != "notify" or plan.study.get("notify")]
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
        _write_shim(directory)
        ledger = open_ledger(directory, plan, slurm if executor == "slurm" else None, choice.here, say)
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
        self._slurm, self._executor, self._report, self._say = slurm, executor, report, say

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
        chosen = {find_cell(self._directory, self._plan, cell)[0].id for cell in choice.cells}
        selected = Selection(self._directory, self._plan, self._ledger, known, choice, chosen)
        cells = [each for job in self._plan.cell_jobs() for each in selected.of(job)]
        check_budget(self._plan, self._ledger, cells, budget)
        if self._executor == "local":
            done = self._locally(
                [*self._stages(known, bool(cells), before=True), *cells, *self._stages(known, bool(cells))]
            )
            waiting = 0
        else:
            done, waiting = self._through_slurm(known, cells)
        tasks = sum(len(each.tasks) for each in cells) - waiting
        return Submitted(tasks, done, selected.already, waiting, dict(selected.left))

    def _release(self, known: Survey) -> None:
        """Release cells whose first start failed on a node (the fence lets them run only once), and remove tasks of completed cells."""
        held = [
            each.key
            for each in known.units.values()
            if each.state in LIVE and each.slurm and word_of(each.slurm.reason or "") == LAUNCH_FAILED and each.key
        ]
        if held:
            self._say(f"released {count(len(held), 'task')} that Slurm held because the start had failed on a node")
            self._slurm.release(held)
        if known.held:
            self._say(f"removed {count(len(known.held), 'task')} that Slurm held although the cells have completed")
            self._slurm.cancel(known.held)

    def _stages(self, known: Survey, cells: bool, before: bool = False) -> Iterator[Wanted]:
        """Give the stages before or after the cells that must run: those that never ran, and those that follow new cells."""
        again = cells
        for job in self._plan.jobs:
            if job.stage in ("cells", "feed") or (job.stage == "environments") != before:
                continue
            if job.stage == "notify" and not self._plan.study.get("notify"):
                continue
            status = known.units.get(job.name, NOT_SUBMITTED)
            if status.state in UNSETTLED or (status.state in LIVE and (before or not again)):
                continue
            if status.state == COMPLETED and (before or not again):
                continue
            if status.state in WAITING:
                # It waits only for earlier cells, and must also wait for the new ones.
                self._withdraw(job, status)
            again = True
            yield Wanted(job, Ask(), [(0, status.attempt + 1)])

    def _withdraw(self, job: Job, status: TaskStatus) -> None:
        """Cancel a waiting stage if it belongs to this user; another user's stage runs after the cells that it waits for."""
        made = status.submission
        user = made.user if made else _user()
        if made and made.executor == "local":
            self._ledger.local_cancel(made.token, status.index)
        elif user == _user():
            self._slurm.cancel([status.key] if status.key else [])
        else:
            self._say(f"{job.name}: job {status.key} of {user} is not changed; another job follows the new cells")

    def _script(self, job: Job) -> str:
        path = self._directory / job.script
        try:
            return path.read_text(encoding="utf-8")
        except OSError as error:
            raise HpcrlError(
                f"{path}: cannot be read: {error.strerror}: run `hpcrl plan` into this directory again to restore it"
            ) from None

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
                cells_per_task=wanted.job.cells_per_task if self._executor == "slurm" else 1,
                user=_user(),
                host=socket.gethostname(),
                directory=str(self._directory.resolve()),
                time=wanted.ask.time,
                memory=wanted.ask.memory,
                exclude=wanted.ask.exclude,
                cause=wanted.ask.cause,
            )
        )

    def _locally(self, wanted: Sequence[Wanted]) -> list[tuple[str, str]]:
        from hpcrl.submit.detached import start_queue

        if not wanted:
            return []
        if running := orphans(self._directory):
            self._say(f"cells of an ended local queue that still run: {running}; new cells start on the other cores")
        made = [self._intend(each) for each in wanted]
        seconds = sum((each.ask.time or float(each.job.resources["time"])) * len(each.tasks) for each in wanted)
        start_queue(self._directory, [each.token for each in made], minutes=int(seconds / 60) + 60)
        cells = sum(len(each.tasks) for each in wanted if each.job.stage == "cells")
        self._report(cells, cells, "")
        process = {each.token: " ".join(each.job_ids) for each in self._ledger.submissions()}
        return [(each.job, process[each.token]) for each in made]

    def _through_slurm(self, known: Survey, cells: Sequence[Wanted]) -> tuple[list[tuple[str, str]], int]:
        from hpcrl.submit.executors import ScriptExecutor

        executor = ScriptExecutor(self._directory, self._slurm, self._say)
        ids = _live_ids(self._plan, known)
        done: list[tuple[str, str]] = []
        previous: list[str] = []
        room = Room(self._plan, self._slurm)
        later = list(self._stages(known, bool(cells)))
        total = sum(len(each.tasks) for each in cells)
        sent = 0

        def send(wanted: Wanted, extra: Sequence[str] = ()) -> None:
            nonlocal previous
            job_id = self._send(executor, wanted, [*_dependency(self._plan, wanted.job, ids, previous), *extra])
            ids.setdefault(wanted.job.name, []).append(job_id)
            previous = [job_id]
            room.take(wanted)
            done.append((wanted.job.name, job_id))

        for each in self._stages(known, bool(cells), before=True):
            send(each)
        for part in room.parts(cells, reserved=[each.job for each in later]):
            send(part)
            sent += len(part.tasks)
            self._report(sent, total, part.job.name)
        if sent < total:
            self._feed(send, ids, sent)
        else:
            for each in later:
                send(each)
        return done, total - sent

    def _feed(self, send: Callable[[Wanted, Sequence[str]], None], ids: Mapping[str, list[str]], sent: int) -> None:
        """Submit a job at the end of this part that submits the next."""
        live = [job_id for found in ids.values() for job_id in found]
        feeder = next((job for job in self._plan.jobs if job.stage == "feed"), None)
        if feeder is None or not live:
            self._say("the queue has no room for the rest: run `hpcrl submit` again when jobs have ended")
            return
        number = 1 + sum(each.job == feeder.name for each in self._ledger.submissions())
        wait = [] if sent else ["--begin=now+5minutes"]  # the queue is full of other jobs
        send(Wanted(feeder, Ask(), [(0, number)]), [f"--dependency=afterany:{':'.join(live[-50:])}", *wait])

    def _send(self, executor: ScriptExecutor, wanted: Wanted, options: Sequence[str]) -> str:
        """Submit one submission, again if Slurm did not get it; return its job id.

        Raises:
            HpcrlError: it is refused, or Slurm does not say.
        """
        job = wanted.job
        for attempt in range(1, _TRIES + 1):
            script = self._script(job)
            made = self._intend(wanted)
            self._lease.check()  # this process may have been suspended since
            try:
                job_id = executor.submit_script(
                    script,
                    [*self._options(job, wanted.ask, made), *options],
                    [made.token, *_environments()],
                )
            except NotInstalled as error:
                self._ledger.refused(made.token, str(error))
                raise
            except Refused as error:
                self._ledger.refused(made.token, str(error))
                raise HpcrlError(f"{job.script}: sbatch refused it: {error}") from None
            except Unconfirmed as error:
                self._say(f"{job.script}: sbatch did not say whether the job was taken ({error})")
                unsettled = settle(self._directory, self._ledger, self._slurm, self._say)
                now = next(each for each in self._ledger.submissions() if each.token == made.token)
                if now.state == "submitted":
                    return now.job_ids[0]
                if unsettled or attempt == _TRIES:
                    raise HpcrlError(
                        f"{job.script}: {error}: nothing is lost or doubled; run `hpcrl submit` again when Slurm answers"
                    ) from None
                continue
            self._ledger.submitted(made.token, job_id)
            return job_id
        raise AssertionError("unreachable")

    def _options(self, job: Job, ask: Ask, made: Submission) -> list[str]:
        options = [f"--job-name={made.name}", f"--comment={made.token}"]
        if job.array:
            throttle = f"%{job.throttle}" if job.throttle and job.throttle < made.array_size else ""
            options.append(f"--array=0-{made.array_size - 1}{throttle}")
        if ask.time:
            options.append(f"--time={-(-ask.time * job.cells_per_task // 60)}")
        if ask.memory:
            options.append(
                f"--mem={ask.memory * int(job.resources.get('tasks', 1)) // int(job.resources.get('nodes', 1))}M"
            )
        if ask.exclude:
            options.append(f"--exclude={','.join(ask.exclude)}")
        # Slurm expands % in the paths of logs, which are below the plan.
        where = str(self._directory.resolve()).replace("%", "%%")
        options.append(f"--output={where}/{LOGS}/{job.name}-{'%A_%a' if job.array else '%j'}.out")
        return options


def _live_ids(plan: Plan, known: Survey) -> dict[str, list[str]]:
    """Return, by job of the plan, the Slurm ids under which some of its tasks still wait or run."""
    found: dict[str, set[str]] = {}
    for status in known.units.values():
        if status.state in LIVE and status.slurm and status.submission:
            found.setdefault(status.submission.job, set()).add(status.slurm.job_id)
    return {name: sorted(ids, key=int) for name, ids in found.items()}


def _dependency(plan: Plan, job: Job, ids: Mapping[str, list[str]], previous: Sequence[str]) -> list[str]:
    """Return sbatch's options that make a job wait for what its stage needs."""
    stages = {each.name: each.stage for each in plan.jobs}

    def of_stage(stage: str) -> list[str]:
        return [job_id for name, found in ids.items() if stages.get(name, "cells") == stage for job_id in found]

    rules: list[str] = []
    if job.stage == "cells":
        built = of_stage("environments")
        rules += [f"afterok:{job_id}" for job_id in built]
        if "sequential" in plan.chain:
            rules += [f"afterany:{job_id}" for job_id in previous if job_id not in built]
    elif job.stage == "collect":
        rules += [f"afterany:{job_id}" for job_id in of_stage("cells")]
    elif job.stage == "report":
        rules += [f"afterok:{job_id}" for job_id in of_stage("collect")]
    elif job.stage == "notify":
        rules += [f"afterany:{job_id}" for stage in ("cells", "collect", "report") for job_id in of_stage(stage)]
    if not rules:
        return []
    # The message is sent whether or not the rest succeeded.
    kill = [] if job.stage == "notify" else ["--kill-on-invalid-dep=yes"]
    return [f"--dependency={','.join(dict.fromkeys(rules))}", *kill]


def _environments() -> list[str]:
    """Return where environments are built, for sites whose jobs inherit no variables."""
    root = os.environ.get("HPCRL_ENVIRONMENTS")
    return [str(Path(root).absolute())] if root else []


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
