"""What Slurm has of a plan: asked by the names of jobs. Jobs that sbatch never confirmed are looked for, and jobs are cancelled.

An sbatch that did not clearly refuse may have submitted the job. So its submission stays an intent until Slurm lists the
job, or until Slurm has said several times that there is none, for longer than any request can take.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
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
    names = [each.name for each in made]
    return slurm.look(names, min((each.at for each in made), default=0.0), [each.name for each in over])


def settle(directory: Path, ledger: Ledger, slurm: Slurm, made: Sequence[Submission], say: Say) -> Sequence[Submission]:
    """Ask Slurm for the names of intents; return those that stay unconfirmed because Slurm did not answer."""
    open_intents = [each for each in made if each.state in ("intent", "gone")]
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
        for each in open_intents:
            ids = _ids(directory, each, view)
            if ids:
                ledger.submitted(each.token, *ids)
                if each.state == "gone" or len(ids) > 1:
                    say(f"{each.name}: Slurm has {count(len(ids), 'job')} of this name; each cell still runs once")
            else:
                left.append(each)
        open_intents = left
        intents = [each for each in open_intents if each.state == "intent"]
        if not intents:
            return []
        if view.queue or (view.accounting and not view.unaccounted):
            for text in view.notes():
                say(text)
            return intents
        if any(_under_way(directory, each, once) for each in intents):
            quiet = 0.0
        elif quiet >= SETTLE_SECONDS:
            for each in intents:
                ledger.gone(each.token, "sbatch did not hand it to Slurm")
            return []
        once(f"asking Slurm for {count(len(intents), 'job')} that sbatch did not confirm")
        time.sleep(_POLL_SECONDS)
        quiet += _POLL_SECONDS


def _ids(directory: Path, submission: Submission, view: View) -> Sequence[str]:
    """Return the ids under which Slurm has or had a submission; a cell of it may have recorded one."""
    if found := view.jobs.get(submission.name):
        return sorted(found, key=int)
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
    keys = [each.key for each in units.values() if each.key]
    if every:  # one argument per whole array: thousands of keys do not fit on a command line
        ids = {key.partition("_")[0] for key in keys}
        for found in look(slurm, ledger, every).jobs.values():
            ids |= {job_id for job_id, tasks in found.items() if any(each.state in LIVE for each in tasks.values())}
        keys = sorted(ids)
    slurm.cancel(keys)
