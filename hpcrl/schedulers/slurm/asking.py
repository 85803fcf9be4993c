"""What Slurm has of a plan: asked by the names of jobs. Jobs that sbatch never confirmed are looked for, and jobs are cancelled.

An sbatch that did not clearly refuse may have submitted the job. So its submission stays an intent until Slurm lists the
job, or until Slurm has said several times that there is none, for longer than any request can take.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from hpcrl.errors import HpcrlError, count
from hpcrl.formats.attempts import read_holder
from hpcrl.formats.files import server_time
from hpcrl.formats.lease import Say
from hpcrl.formats.ledger import Ledger
from hpcrl.formats.plan import cell_ids, find_job
from hpcrl.formats.submission import SUBMISSIONS, Submission
from hpcrl.schedulers.states import LIVE, TaskStatus
from hpcrl.slurm.client import SBATCH_SECONDS, Slurm, View

SETTLE_SECONDS = 6.0  # for which Slurm must say no, after no sbatch for it runs any more
_POLL_SECONDS = 1.0


def look(slurm: Slurm, ledger: Ledger, made: Sequence[Submission], over: Sequence[Submission] = ()) -> View:
    """Ask squeue and sacct for some submissions, and squeue also for those that should be over."""
    names = [submission.name for submission in made]
    since = min((submission.at for submission in made), default=0.0)
    view = slurm.look(names, since, [submission.name for submission in over])
    unknown = {
        submission.name: submission.job_ids
        for submission in made
        if submission.job_ids and not _has_tasks(view, submission)
    }
    if not unknown or view.queue or view.accounting:
        return view
    by_id = slurm.look_by_id(unknown, since)
    for name, jobs in by_id.jobs.items():
        for job_id, tasks in jobs.items():
            known = view.jobs.setdefault(name, {}).setdefault(job_id, {})
            known |= {index: task for index, task in tasks.items() if index not in known}
    return replace(view, accounting=by_id.accounting)


def _has_tasks(view: View, submission: Submission) -> bool:
    """Tell whether Slurm's answers have every array task of a submission."""
    known = {index for tasks in view.jobs.get(submission.name, {}).values() for index in tasks}
    return all(index in known for index, _, _ in submission.places())


def settle(directory: Path, ledger: Ledger, slurm: Slurm, made: Sequence[Submission], say: Say) -> Sequence[Submission]:
    """Ask Slurm for the names of intents; return those that stay unconfirmed because Slurm did not answer."""
    open_intents = [intent for intent in made if intent.state in ("intent", "gone")]
    if not open_intents:
        return []
    quiet = 0.0
    told: set[str] = set()

    def once(text: str) -> None:
        if text not in told:
            told.add(text)
            say(text)

    while True:
        view = look(slurm, ledger, open_intents)
        left = []
        for submission in open_intents:
            ids = _ids(directory, submission, view)
            if ids:
                ledger.submitted(submission.token, *ids)
                if submission.state == "gone" or len(ids) > 1:
                    say(
                        f"{submission.name}: Slurm has {count(len(ids), 'job')} of this name; each cell still runs once"
                    )
            else:
                left.append(submission)
        open_intents = left
        intents = [intent for intent in open_intents if intent.state == "intent"]
        if not intents:
            return []
        if view.unanswered:
            for text in view.notes():
                say(text)
            return intents
        if any(_under_way(directory, intent, once) for intent in intents):
            quiet = 0.0
        elif quiet >= SETTLE_SECONDS:
            for submission in intents:
                ledger.gone(submission.token, "sbatch did not hand it to Slurm")
            return []
        once(f"asking Slurm for {count(len(intents), 'job')} that sbatch did not confirm")
        time.sleep(_POLL_SECONDS)
        quiet += _POLL_SECONDS


def _ids(directory: Path, submission: Submission, view: View) -> Sequence[str]:
    """Return the ids under which Slurm has or had a submission; a cell of it may have recorded one."""
    if jobs := view.jobs.get(submission.name):
        return sorted(jobs, key=int)
    try:
        plan, job = find_job(directory, submission.job)
        if job.stage != "cells":
            return ()
        ids = cell_ids(directory, plan)[job.first : job.first + job.count]
        task, attempt = submission.entries[0]
        holder = read_holder(directory, ids[task], attempt)
    except (HpcrlError, IndexError):
        return ()
    job_id = str(holder.get("job", "")).partition("_")[0]
    return [job_id] if holder.get("token") == submission.token and job_id.isdecimal() else ()


def _under_way(directory: Path, submission: Submission, say: Say) -> bool:
    """Tell whether an sbatch for a submission may still run: on this host, or on another until its timeout."""
    if submission.host == os.uname().nodename:
        me = os.getpid()
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or ()
            if process.pid != me and any(word == f"--comment={submission.token}" for word in words):
                say(f"{submission.name}: its sbatch (process {process.pid}) still runs; waiting for it")
                return True
        return False
    try:
        age = server_time(directory) - (directory / SUBMISSIONS / submission.token).stat().st_mtime
    except OSError:
        age = time.time() - submission.at
    return age < SBATCH_SECONDS + 30


def cancel(
    directory: Path,
    ledger: Ledger,
    slurm: Slurm,
    units: Mapping[str, TaskStatus],
    every: Sequence[Submission] = (),
) -> None:
    """Cancel array tasks; of the submissions `every` all live jobs, also unexpected ones.

    Raises:
        HpcrlError: Slurm does not answer.
    """
    keys = [status.key for status in units.values() if status.key]
    if every:  # one argument per whole array: thousands of keys do not fit on a command line
        ids = {key.partition("_")[0] for key in keys}
        for jobs in look(slurm, ledger, every).jobs.values():
            ids |= {job_id for job_id, tasks in jobs.items() if any(task.state in LIVE for task in tasks.values())}
        keys = sorted(ids)
    slurm.cancel(keys)
