"""The local executor's queue: runs the jobs of a plan on this machine, as many at once as it has cores for.

It is one submitit job (`drain`), so that the process that submitted may end.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcrl.formats.ledger import Ledger
from hpcrl.formats.plan import LOGS, STAGES, Job, Plan, find_job, read_plan
from hpcrl.formats.processes import lives
from hpcrl.formats.queues import Queue
from hpcrl.formats.submission import Submission
from hpcrl.submit.survey import attempt_name

POLL_SECONDS = 0.2


def local_log(directory: Path, job: Job, submission: Submission, index: int) -> Path:
    return directory / LOGS / f"{job.name}-{attempt_name(submission, index)}.out"


@dataclass
class _Running:
    submission: Submission
    task: int
    process: subprocess.Popen[bytes]
    cores: list[int]
    gpus: list[str]  # as CUDA_VISIBLE_DEVICES names them
    warn_at: float
    kill_at: float
    warning: signal.Signals = signal.SIGUSR2
    signals: set[str] = field(default_factory=set)


@dataclass
class _Machine:
    cores: list[int]
    gpus: list[str]  # as CUDA_VISIBLE_DEVICES names them

    def take(self, job: Job) -> tuple[list[int], list[str]] | None:
        """Take a job's cores and GPUs, or None while they are in use."""
        wanted, gpus = _wanted(job)
        if wanted > len(self.cores) or gpus > len(self.gpus):
            return None
        cores, self.cores = self.cores[:wanted], self.cores[wanted:]
        chosen, self.gpus = self.gpus[:gpus], self.gpus[gpus:]
        return cores, chosen

    def lacks(self, job: Job) -> str:
        """Say why a job cannot run although nothing else does."""
        wanted, gpus = _wanted(job)
        return (
            f"this machine is too small for this job: cores asked for: {wanted}, here: {len(self.cores)}; GPUs asked for: {gpus}, "
            f"here: {len(self.gpus)}. Make the plan on this machine, or submit it elsewhere"
        )

    def give_back(self, running: _Running) -> None:
        self.cores = sorted([*self.cores, *running.cores])
        self.gpus = [*running.gpus, *self.gpus]


def _wanted(job: Job) -> tuple[int, int]:
    """Return how many cores and GPUs a job takes."""
    return int(job.resources["cpus"]) * int(job.resources.get("tasks", 1)), int(job.resources.get("gpus", 0))


def drain(directory: str, tokens: list[str], gpus: list[str]) -> None:
    """Run the submissions `tokens` to their end, stage after stage; a later stage needs no success of the cells.

    Args:
        gpus: as ``CUDA_VISIBLE_DEVICES`` names them. Here they cannot be looked up: submitit hides them from its jobs.
    """
    path = Path(directory)
    plan = read_plan(path)
    ledger = Ledger(path)
    machine = _Machine(sorted(os.sched_getaffinity(0)), gpus)
    process = Queue(path, tokens)
    # What was given up meanwhile, as lost, is not for this queue any more.
    mine = {token for token in tokens if ledger.take_up(token, os.getpid())}
    submissions = [each for each in ledger.submissions() if each.token in mine]
    at_once = 1 if plan.chain == "sequential" else int(plan.study.get("max_parallel") or len(machine.cores))
    # The plan may get a new generation while this one runs: its jobs stay where they are.
    jobs = {each.job: find_job(path, each.job)[1] for each in submissions}
    for stage in STAGES:
        queue = [(each, index) for each in submissions if jobs[each.job].stage == stage for index in _indices(each)]
        states = _run_queue(path, plan, jobs, ledger, machine, queue, at_once, process)
        if stage in ("environments", "collect") and any(state != "COMPLETED" for state in states):
            # A message is sent whatever became of the rest.
            stages = STAGES[STAGES.index(stage) + 1 : STAGES.index("notify")]
            for each in [each for each in submissions if jobs[each.job].stage in stages]:
                submissions.remove(each)
                for index in _indices(each):
                    ledger.local_end(each.token, index, "CANCELLED", None)


def _indices(submission: Submission) -> range:
    return range(len(submission.entries))


def _run_queue(
    directory: Path,
    plan: Plan,
    jobs: Mapping[str, Job],
    ledger: Ledger,
    machine: _Machine,
    queue: list[tuple[Submission, int]],
    at_once: int,
    process: Queue,
) -> list[str]:
    running: list[_Running] = []
    states: list[str] = []
    warning = _warning(plan)
    while queue or running:
        cancelled = {(each.token, each.task) for each in ledger.local_tasks() if each.state == "CANCELLING"}
        for submission, task in [entry for entry in queue if (entry[0].token, entry[1]) in cancelled]:
            queue.remove((submission, task))
            ledger.local_end(submission.token, task, "CANCELLED", None)
            states.append("CANCELLED")
        while queue and len(running) < at_once:
            submission, task = queue[0]
            job = jobs[submission.job]
            taken = machine.take(job)
            if taken is None:
                if running:
                    break
                with local_log(directory, job, submission, task).open("a") as log:
                    log.write(f"hpcrl: {machine.lacks(job)}\n")
                ledger.local_end(submission.token, task, "FAILED", None)
                states.append("FAILED")
                queue.pop(0)
                continue
            queue.pop(0)
            running.append(_start(directory, job, submission, task, warning, *taken))
            ledger.local_start(submission.token, task)
        time.sleep(POLL_SECONDS)
        process.beat()
        for each in list(running):
            _signal(each, (each.submission.token, each.task) in cancelled)
            code = each.process.poll()
            if code is None:
                continue
            running.remove(each)
            machine.give_back(each)
            state = "COMPLETED" if code == 0 else "FAILED"
            if "cancel" in each.signals:
                state = "CANCELLED"
            elif "time" in each.signals and code != 0:
                state = "TIMEOUT"
            ledger.local_end(each.submission.token, each.task, state, code)
            states.append(state)
    return states


def _warning(plan: Plan) -> signal.Signals | None:
    """Return the signal that a cell is sent before its time limit: one that does not know it would be ended by it."""
    name = plan.workload.get("on_warning", "none") if plan.workload.get("command") else "USR2"
    return None if name == "none" else signal.Signals[f"SIG{name}"]


def _start(
    directory: Path,
    job: Job,
    submission: Submission,
    task: int,
    warning: signal.Signals | None,
    cores: list[int],
    gpus: list[str],
) -> _Running:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SUBMITIT_"))}
    environment |= {
        "HPCRL_TASK": str(task),
        "HPCRL_ATTEMPT": attempt_name(submission, task),
        "HPCRL_CORES": ",".join(map(str, cores)),
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
    }
    with local_log(directory, job, submission, task).open("ab") as log:
        process = subprocess.Popen(
            ["bash", job.script, submission.token],
            cwd=directory,
            env=environment,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    limit = float(submission.time or job.resources["time"])
    now = time.monotonic()
    warn_at = now + max(limit * 0.75, limit - 120) if warning else math.inf
    return _Running(submission, task, process, cores, gpus, warn_at, now + limit, warning or signal.SIGUSR2)


def _signal(running: _Running, cancelled: bool) -> None:
    now = time.monotonic()
    if cancelled and "cancel" not in running.signals:
        running.signals.add("cancel")
        running.kill_at = min(running.kill_at, now + 30)
        _send(running, signal.SIGTERM)
    if now >= running.warn_at and "time" not in running.signals:
        running.signals.add("time")
        _send(running, running.warning)
    if now >= running.kill_at:
        _send(running, signal.SIGKILL)


def _send(running: _Running, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        # The sampler and a user's command have process groups of their own: they end by their own rules.
        (os.killpg if number == signal.SIGKILL else os.kill)(running.process.pid, number)


def end_orphan(holder: Mapping[str, Any]) -> None:
    """Ask a cell to end whose queue has ended before it."""
    if lives(holder):
        with suppress(ProcessLookupError):
            os.kill(int(holder["pid"]), signal.SIGTERM)
