"""The local executor's queue: it runs the jobs of a plan on this machine, as many at once as the cores allow.

It is one submitit job (`drain`), so that the process that submitted may end.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hpcrl.errors import HpcrlError
from hpcrl.formats.ledger import Ledger, LocalTask
from hpcrl.formats.plan import STAGES, Job, Plan, find_job, read_plan
from hpcrl.formats.queues import Held, Queue, read_queues
from hpcrl.formats.submission import Submission
from hpcrl.telemetry.processes import descendants

POLL_SECONDS = 0.2
OTHERS_SECONDS = 1.0  # between two looks at other queues
_LEDGER_SECONDS = 10.0
KILL_SECONDS = 30.0  # from SIGTERM to SIGKILL, as Slurm's KillWait


@dataclass
class _Running:
    submission: Submission
    task: int
    process: subprocess.Popen[bytes]
    cores: list[int]
    gpus: list[str]  # as CUDA_VISIBLE_DEVICES names them
    warn_at: float
    limit_at: float
    kill_at: float
    warning: signal.Signals = signal.SIGUSR2
    signals: set[str] = field(default_factory=set)


@dataclass
class _Machine:
    cores: list[int]
    gpus: list[str]  # as CUDA_VISIBLE_DEVICES names them

    def take(self, job: Job, held: Held) -> tuple[list[int], list[str]] | None:
        """Take cores and GPUs for a job; None while they are in use by this or another queue."""
        wanted, gpus = job.asked.cores, job.asked.gpus
        cores = [core for core in self.cores if core not in held.cores][:wanted]
        chosen = [gpu for gpu in self.gpus if gpu not in held.gpus][:gpus]
        if len(cores) < wanted or len(chosen) < gpus:
            return None
        self.cores = [core for core in self.cores if core not in cores]
        self.gpus = [gpu for gpu in self.gpus if gpu not in chosen]
        return cores, chosen

    def lacks(self, job: Job) -> str:
        """Say why a job cannot run although nothing else runs."""
        wanted, gpus = job.asked.cores, job.asked.gpus
        return (
            f"this machine is too small for this job: cores asked for: {wanted}, here: {len(self.cores)}; GPUs asked for: {gpus}, "
            f"here: {len(self.gpus)}. Make the plan on this machine, or submit it elsewhere"
        )

    def give_back(self, running: _Running) -> None:
        self.cores = sorted([*self.cores, *running.cores])
        self.gpus = [*running.gpus, *self.gpus]


def drain(directory: str, tokens: list[str], gpus: list[str]) -> None:
    """Run the submissions `tokens` to their end, stage after stage; a later stage needs no success of the cells.

    Args:
        gpus: as ``CUDA_VISIBLE_DEVICES`` names them. Here they cannot be looked up: submitit hides them from its jobs.
    """
    import submitit  # slow

    log = submitit.JobEnvironment().paths.stderr.name
    _Draining(Path(directory), tokens, _Machine(sorted(os.sched_getaffinity(0)), gpus), log).run()


class _Notes:
    """The entries of a queue for the ledger, in order. They are kept while the file is gone, locked or damaged, and written again
    into a rebuilt ledger. The fence shows what ran in any case.
    """

    def __init__(self, directory: Path, ledger: Ledger) -> None:
        self._ledger = ledger
        self._directory = directory
        self._all: list[Callable[[Ledger], None]] = []
        self._noted = 0
        self._submissions: list[Submission] = []

    def start(self, token: str, task: int) -> None:
        self._add(lambda ledger: ledger.local_start(token, task))

    def end(self, token: str, task: int, state: str, exit_code: int | None) -> None:
        self._add(lambda ledger: ledger.local_end(token, task, state, exit_code))

    def tasks(self) -> list[LocalTask]:
        """Return the ledger's present content; nothing while it cannot be read."""
        self._flush()
        try:
            return self._ledger.local_tasks()
        except HpcrlError:
            return []

    def submissions(self) -> list[Submission]:
        """Return the ledger's submissions; while it cannot be read, those of the last time."""
        self._flush()
        with suppress(HpcrlError):
            self._submissions = self._ledger.submissions()
        return self._submissions

    def finish(self) -> None:
        """Wait a short time for a ledger that still lacks entries."""
        deadline = time.monotonic() + _LEDGER_SECONDS
        while not self._flush() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)

    def _add(self, note: Callable[[Ledger], None]) -> None:
        self._all.append(note)
        self._flush()

    def _flush(self) -> bool:
        try:
            self._reopen_if_replaced()
            while self._noted < len(self._all):
                self._all[self._noted](self._ledger)
                self._noted += 1
        except (HpcrlError, OSError):
            return False
        return True

    def _reopen_if_replaced(self) -> None:
        if self._ledger.is_in_place():
            return
        fresh = Ledger(self._directory)  # HpcrlError while there is none
        self._ledger.close()
        self._ledger, self._noted = fresh, 0


class _Draining:
    """One local queue at work."""

    def __init__(self, directory: Path, tokens: list[str], machine: _Machine, log: str) -> None:
        self._directory, self._machine = directory, machine
        plan = read_plan(directory)
        ledger = Ledger(directory)
        self._notes = _Notes(directory, ledger)
        self._process = Queue(directory, tokens, log)
        self._tokens = frozenset(tokens)
        # This queue does not run submissions that were given up as lost meanwhile.
        mine = {token for token in tokens if ledger.take_up(token, os.getpid())}
        self._submissions = [submission for submission in ledger.submissions() if submission.token in mine]
        # The plan may get a new generation while this one runs: its jobs stay where they are.
        self._jobs = {submission.job: find_job(directory, submission.job)[1] for submission in self._submissions}
        self._warning = _warning(plan)
        self._at_once = 1 if "sequential" in plan.chain else plan.study.max_parallel or len(machine.cores)
        self._running: list[_Running] = []

    def run(self) -> None:
        for stage in STAGES:
            states = self._run_stage(stage)
            if stage == "environments" and not states:  # else it has built all that this queue's cells need
                states = self._wait_for_others(stage)
            elif stage == "cells" and any(
                self._jobs[submission.job].stage != "cells" for submission in self._submissions
            ):
                self._wait_for_others(stage)  # the stages that follow are for all cells
            if stage in ("environments", "collect") and any(state != "COMPLETED" for state in states):
                # The message is sent whether or not the rest succeeded.
                self._give_up(STAGES[STAGES.index(stage) + 1 : STAGES.index("notify")])
        self._notes.finish()

    def _wait_for_others(self, stage: str) -> list[str]:
        """Wait until other queues of the plan have run their part of a stage; return the states of that part."""
        states = []
        for submission in self._notes.submissions():
            if not submission.scheduler.here or submission.state != "submitted" or submission.token in self._tokens:
                continue
            if find_job(self._directory, submission.job)[1].stage != stage:
                continue
            waited = False
            while len(ended := self._ended_of(submission)) < len(submission.entries) and read_queues(
                self._directory
            ).get(submission.token):
                waited = True
                time.sleep(OTHERS_SECONDS)
                self._process.beat()
            if waited:  # parts that had ended before were checked when this was submitted
                states += ended if len(ended) == len(submission.entries) else ["LOST"]
        return states

    def _ended_of(self, submission: Submission) -> list[str]:
        tasks = self._notes.tasks()
        return [task.state for task in tasks if task.token == submission.token and task.ended is not None]

    def _give_up(self, stages: Sequence[str]) -> None:
        for submission in [candidate for candidate in self._submissions if self._jobs[candidate.job].stage in stages]:
            self._submissions.remove(submission)
            for index in _indices(submission):
                self._notes.end(submission.token, index, "CANCELLED", None)

    def _run_stage(self, stage: str) -> list[str]:
        """Run a stage's tasks, wave after wave; return their final states."""
        mine = [submission for submission in self._submissions if self._jobs[submission.job].stage == stage]
        waves = sorted({self._jobs[submission.job].wave for submission in mine})
        return [
            state
            for wave in waves
            for state in self._run_all([submission for submission in mine if self._jobs[submission.job].wave == wave])
        ]

    def _run_all(self, submissions: Sequence[Submission]) -> list[str]:
        """Run the tasks of submissions, as many at once as the cores allow; return their final states."""
        queue = [(made, index) for made in submissions for index in _indices(made)]
        states: list[str] = []
        while queue or self._running:
            cancelled = {(note.token, note.task) for note in self._notes.tasks() if note.state == "CANCELLING"}
            for submission, task in [entry for entry in queue if (entry[0].token, entry[1]) in cancelled]:
                queue.remove((submission, task))
                self._notes.end(submission.token, task, "CANCELLED", None)
                states.append("CANCELLED")
            if queue and len(self._running) < self._at_once:
                with self._process.turn() as held:
                    if held is not None:
                        states += self._start_some(queue, held)
                        self._process.runs(
                            [(running.process.pid, running.cores, running.gpus) for running in self._running]
                        )
            time.sleep(POLL_SECONDS)
            self._process.beat()
            states += self._ended(cancelled)
        return states

    def _start_some(self, queue: list[tuple[Submission, int]], held: Held) -> list[str]:
        """Start the tasks that fit, in order; return the states of those that can never run here."""
        states = []
        while queue and len(self._running) + held.tasks < self._at_once:
            submission, task = queue[0]
            job = self._jobs[submission.job]
            taken = self._machine.take(job, held)
            if taken is None and (self._running or held.tasks):
                break
            queue.pop(0)
            if taken is None:
                with (self._directory / submission.log(task)).open("a") as log:
                    log.write(f"hpcrl: {self._machine.lacks(job)}\n")
                self._notes.end(submission.token, task, "FAILED", None)
                states.append("FAILED")
                continue
            self._running.append(_start(self._directory, job, submission, task, self._warning, *taken))
            self._notes.start(submission.token, task)
        return states

    def _ended(self, cancelled: Collection[tuple[str, int]]) -> list[str]:
        """Send signals to the tasks that must end, and return the states of those that have ended."""
        states = []
        for task in list(self._running):
            _signal(task, (task.submission.token, task.task) in cancelled)
            code = task.process.poll()
            if code is None:
                continue
            self._running.remove(task)
            self._machine.give_back(task)
            state = "COMPLETED" if code == 0 else "FAILED"
            if "cancel" in task.signals:
                state = "CANCELLED"
            elif "limit" in task.signals or ("time" in task.signals and code != 0):
                state = "TIMEOUT"
            self._notes.end(task.submission.token, task.task, state, code)
            states.append(state)
        return states


def _indices(submission: Submission) -> range:
    return range(len(submission.entries))


def _warning(plan: Plan) -> signal.Signals | None:
    """Return the signal that a cell gets before its time limit; it would end a program that does not handle it."""
    name = plan.workload.get("on_warning", "none") if plan.runs_command else "USR2"
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
        "HPCRL_ATTEMPT": submission.attempt(task),
        "HPCRL_CORES": ",".join(map(str, cores)),
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
    }
    with (directory / submission.log(task)).open("ab") as log:
        process = subprocess.Popen(
            ["bash", job.script, submission.token],
            cwd=directory,
            env=environment,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    limit = float(submission.time or job.asked.time)
    now = time.monotonic()
    warn_at = now + max(limit * 0.75, limit - 120) if warning else math.inf
    signal_number = warning or signal.SIGUSR2
    limit_at, kill_at = now + limit, now + limit + KILL_SECONDS
    return _Running(submission, task, process, cores, gpus, warn_at, limit_at, kill_at, signal_number)


def _signal(running: _Running, cancelled: bool) -> None:
    now = time.monotonic()
    if cancelled and "cancel" not in running.signals:
        running.signals.add("cancel")
        running.kill_at = min(running.kill_at, now + KILL_SECONDS)
        _send(running, signal.SIGTERM)
    if now >= running.warn_at and "time" not in running.signals:
        running.signals.add("time")
        _send(running, running.warning)
    if now >= running.limit_at and "limit" not in running.signals:
        running.signals |= {"time", "limit"}
        _send(running, signal.SIGTERM)
    if now >= running.kill_at:
        _kill(running.process.pid)


def _send(running: _Running, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        # The sampler and a user's command have process groups of their own: hpcrl's process hands the signal on.
        os.kill(running.process.pid, number)


def _kill(pid: int) -> None:
    """Kill a task with all that it started: what it leaves would run beside the next tasks."""
    below = descendants(pid)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    for child in below:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
