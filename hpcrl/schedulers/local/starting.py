"""The local queue, seen from outside: it is started, found and asked to end tasks. What it runs stands in the ledger."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from hpcrl.errors import HpcrlError
from hpcrl.formats.attempts import read_holder
from hpcrl.formats.lease import Say
from hpcrl.formats.ledger import Ledger, LocalTask
from hpcrl.formats.processes import end
from hpcrl.formats.queues import QUEUE_LOGS, orphans, read_queues
from hpcrl.formats.submission import Submission
from hpcrl.schedulers.interface import Desk, Jobs
from hpcrl.schedulers.states import BEING_CANCELLED, TaskStatus
from hpcrl.schedulers.wanted import Wanted
from hpcrl.slurm.client import JobState, Slurm, Tasks, View

# The module that starts a local queue, as in the command line of its process.
STARTER = "hpcrl.schedulers.local.detached"
_POLL_SECONDS = 1.0
_WAITS = JobState("", "PENDING")


def look(slurm: Slurm, ledger: Ledger, made: Sequence[Submission], over: Sequence[Submission] = ()) -> View:
    """Read the ledger, where the local queues note what begins and ends. Their jobs have no id."""
    tasks: dict[str, Tasks] = {
        submission.token: dict.fromkeys(range(len(submission.entries)), _WAITS) for submission in made
    }
    for entry in ledger.local_tasks() if made else ():
        if entry.token in tasks:
            tasks[entry.token][entry.task] = _state(entry)
    return View({submission.name: {"": tasks[submission.token]} for submission in made})


def _state(entry: LocalTask) -> JobState:
    if entry.state == "CANCELLING":
        return JobState("", "RUNNING" if entry.started else "PENDING", reason=BEING_CANCELLED)
    code = None if entry.exit_code is None else f"{entry.exit_code}:0"
    return JobState("", entry.state, code, entry.ended - entry.started if entry.ended and entry.started else None)


def settle(directory: Path, ledger: Ledger, slurm: Slurm, made: Sequence[Submission], say: Say) -> Sequence[Submission]:
    """Find out whether a local queue has each intent, when no process is starting one."""
    for submission in made:
        if submission.state != "intent":
            continue
        if _starts_here(submission):
            say(f"waiting for the local queue of {submission.job} to start")
            while _starts_here(submission):
                time.sleep(_POLL_SECONDS)
        if submission.token in read_queues(directory):
            ledger.submitted(submission.token)
        elif submission.host == os.uname().nodename:
            ledger.gone(submission.token, "the process that submitted it ended before the local queue had it")
    return []


def _starts_here(submission: Submission) -> bool:
    """Tell whether a local queue is being started for a submission. (A running cell has the token in its command line, too.)"""
    return submission.host == os.uname().nodename and any(
        {STARTER, submission.token} <= set(process.info["cmdline"] or ())
        for process in psutil.process_iter(["cmdline"])
    )


def hand_over(
    desk: Desk,
    units: Mapping[str, TaskStatus],
    before: Iterable[Wanted],
    cells: Sequence[Wanted],
    after: Iterator[Wanted],
) -> tuple[Jobs, int]:
    """Start one queue for everything: it needs no room."""
    wanted = [*before, *cells, *after]
    if not wanted:
        return [], 0
    if running := orphans(desk.directory):
        desk.say(f"cells of an ended local queue that still run: {running}; new cells start on the other cores")
    made = [desk.intend(part) for part in wanted]
    seconds = sum((part.ask.time or part.job.asked.time) * len(part.tasks) for part in wanted)
    start_queue(desk.directory, [submission.token for submission in made], minutes=int(seconds / 60) + 60)
    number = sum(len(part.tasks) for part in wanted if part.job.stage == "cells")
    desk.report(number, number, "")
    process = {submission.token: " ".join(submission.job_ids) for submission in desk.ledger.submissions()}
    return [(submission.job, process[submission.token]) for submission in made], 0


def start_queue(directory: Path, tokens: Sequence[str], minutes: int) -> None:
    """Start the local queue for some submissions; the ledger then says under which process id.

    Raises:
        HpcrlError: it did not start.
    """
    folder = directory / QUEUE_LOGS
    folder.mkdir(exist_ok=True)
    log = folder / "start.log"
    log.unlink(missing_ok=True)  # whatever it contains
    with log.open("wb") as file:
        done = subprocess.run(
            [sys.executable, "-P", "-m", STARTER, str(directory.resolve()), str(minutes), *tokens],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            check=False,
        )
    if done.returncode != 0:
        lines = log.read_text(errors="replace").strip().splitlines()
        raise HpcrlError(f"the local queue did not start: {lines[-1] if lines else f'see {log}'}")


def cancel(
    directory: Path,
    ledger: Ledger,
    slurm: Slurm,
    units: Mapping[str, TaskStatus],
    every: Sequence[Submission] = (),
) -> None:
    """Ask the queues to end tasks, and the cells themselves whose queue has ended."""
    queues = read_queues(directory)
    for name, status in units.items():
        if status.submission is None:
            continue
        ledger.local_cancel(status.submission.token, status.index)
        if not queues.get(status.submission.token):
            end(read_holder(directory, name, status.attempt))
