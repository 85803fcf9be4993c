"""Hand jobs over to Slurm: each submission is written down before sbatch is called, and confirmed after it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcrl.errors import HpcrlError
from hpcrl.formats.plan import LOGS, Job, Plan
from hpcrl.formats.submission import Submission
from hpcrl.schedulers.interface import Desk, Jobs
from hpcrl.schedulers.slurm.asking import settle
from hpcrl.schedulers.slurm.room import Room
from hpcrl.schedulers.states import LIVE, TaskStatus
from hpcrl.schedulers.wanted import Ask, Wanted
from hpcrl.slurm.client import NotInstalled, Refused, Unconfirmed

if TYPE_CHECKING:
    from hpcrl.schedulers.slurm.scripts import ScriptExecutor  # imports submitit, which is slow

# How often a submission that Slurm did not get is submitted again before the user must do it.
_TRIES = 3


def hand_over(
    desk: Desk,
    units: Mapping[str, TaskStatus],
    before: Iterable[Wanted],
    cells: Sequence[Wanted],
    after: Iterator[Wanted],
) -> tuple[Jobs, int]:
    """Submit as many cells as the site's queue has room for, and the stages before and after them.

    Raises:
        HpcrlError: Slurm refuses a job, or does not say whether it took it.
    """
    return _Sending(desk).run(_live_ids(units), before, cells, after)


class _Sending:
    def __init__(self, desk: Desk) -> None:
        self._desk, self._directory, self._plan = desk, desk.directory, desk.plan
        self._ledger, self._slurm, self._say = desk.ledger, desk.slurm, desk.say

    def run(
        self, ids: dict[str, list[str]], before: Iterable[Wanted], cells: Sequence[Wanted], after: Iterator[Wanted]
    ) -> tuple[Jobs, int]:
        from hpcrl.schedulers.slurm.scripts import ScriptExecutor

        executor = ScriptExecutor(self._directory, self._slurm, self._say)
        done: Jobs = []
        previous: list[str] = []
        room = Room(self._plan, self._slurm)
        later = list(after)
        total = sum(len(wanted.tasks) for wanted in cells)
        sent = 0

        def send(wanted: Wanted, extra: Sequence[str] = ()) -> None:
            nonlocal previous
            job_id = self._send(executor, wanted, [*_dependency(self._plan, wanted.job, ids, previous), *extra])
            ids.setdefault(wanted.job.name, []).append(job_id)
            previous = [job_id]
            room.take(wanted)
            done.append((wanted.job.name, job_id))

        for stage in before:
            ids.pop(stage.job.name, None)  # it builds all that these cells need, whatever an earlier one builds
            send(stage)
        for part in room.parts(cells, reserved=[wanted.job for wanted in later]):
            send(part)
            sent += len(part.tasks)
            self._desk.report(sent, total, part.job.name)
        if sent < total:
            self._feed(send, ids, sent)
        else:
            for stage in later:
                send(stage)
        return done, total - sent

    def _feed(self, send: Callable[[Wanted, Sequence[str]], None], ids: Mapping[str, list[str]], sent: int) -> None:
        """Submit a job at the end of this part that submits the next."""
        live = [job_id for job_ids in ids.values() for job_id in job_ids]
        feeder = next((job for job in self._plan.jobs if job.stage == "feed"), None)
        if feeder is None or not live:
            self._say("the queue has no room for the rest: run `hpcrl submit` again when jobs have ended")
            return
        number = 1 + sum(submission.job == feeder.name for submission in self._ledger.submissions())
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
            made = self._desk.intend(wanted)
            self._desk.lease.check()  # this process may have been suspended since
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
                ours = [submission for submission in self._ledger.submissions() if submission.executor == made.executor]
                unsettled = settle(self._directory, self._ledger, self._slurm, ours, self._say)
                now = next(submission for submission in self._ledger.submissions() if submission.token == made.token)
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
            options.append(f"--mem={job.asked.memory_per_node(ask.memory)}M")
        if ask.exclude:
            options.append(f"--exclude={','.join(ask.exclude)}")
        # Slurm expands % in the paths of logs, which are below the plan.
        where = str(self._directory.resolve()).replace("%", "%%")
        options.append(f"--output={where}/{LOGS}/{job.name}-{'%A_%a' if job.array else '%j'}.out")
        return options

    def _script(self, job: Job) -> str:
        path = self._directory / job.script
        try:
            return path.read_text(encoding="utf-8")
        except OSError as error:
            raise HpcrlError(
                f"{path}: cannot be read: {error.strerror}: run `hpcrl plan` into this directory again to restore it"
            ) from None


def _live_ids(units: Mapping[str, TaskStatus]) -> dict[str, list[str]]:
    """Return, by job of the plan, the Slurm ids under which some of its tasks still wait or run."""
    by_job: dict[str, set[str]] = {}
    for status in units.values():
        if status.state in LIVE and status.slurm and status.submission:
            by_job.setdefault(status.submission.job, set()).add(status.slurm.job_id)
    return {name: sorted(ids, key=int) for name, ids in by_job.items()}


def _dependency(plan: Plan, job: Job, ids: Mapping[str, list[str]], previous: Sequence[str]) -> list[str]:
    """Return sbatch's options that make a job wait for what its stage needs."""
    stages = {other.name: other.stage for other in plan.jobs}
    earlier = {other.name for other in plan.cell_jobs() if other.wave < job.wave}

    def of_stage(stage: str) -> list[str]:
        return [job_id for name, job_ids in ids.items() if stages.get(name, "cells") == stage for job_id in job_ids]

    rules: list[str] = []
    if job.stage == "cells":
        built = of_stage("environments")
        rules += [f"afterok:{job_id}" for job_id in built]
        if "sequential" in plan.chain:
            rules += [f"afterany:{job_id}" for job_id in previous if job_id not in built]
        rules += [f"afterany:{job_id}" for name, job_ids in ids.items() if name in earlier for job_id in job_ids]
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
