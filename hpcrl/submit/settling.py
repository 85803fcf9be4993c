"""Find out what happened to submissions that were recorded but never confirmed, by asking Slurm for their names.

An sbatch that did not clearly refuse may have submitted the job. So its submission stays an intent until Slurm lists the
job, or until Slurm has said several times that there is none, for longer than any request can take.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from hpcrl.errors import HpcrlError, count
from hpcrl.formats.attempts import read_holder
from hpcrl.formats.files import server_time
from hpcrl.formats.lease import Say
from hpcrl.formats.ledger import FILE, DamagedLedger, Ledger
from hpcrl.formats.plan import Plan, cell_ids, every_generation, find_job, read_plan
from hpcrl.formats.queues import read_queues
from hpcrl.formats.submission import SUBMISSIONS, Submission, plan_prefix, read_submissions, write_submission
from hpcrl.slurm.client import RUNNING, SBATCH_SECONDS, WAITING, Slurm, View

SETTLE_SECONDS = 6.0  # for which Slurm must say no, after no sbatch for it runs any more
_POLL_SECONDS = 1.0
# The module that starts a local queue, as in the command line of its process.
STARTER = "hpcrl.submit.detached"
_GO_ON = "continue there, or run the rest here too with --here"


def settle(directory: Path, ledger: Ledger, slurm: Slurm, say: Say) -> list[Submission]:
    """Settle every intent; return those that stay unconfirmed because Slurm did not answer.

    The caller holds the lease, so no other process works on an intent now.
    """
    open_intents: list[Submission] = []
    for each in ledger.submissions():
        if each.state == "intent" and each.executor == "local":
            _settle_local(directory, ledger, each, say)
        elif each.state in ("intent", "gone") and each.executor == "slurm":
            open_intents.append(each)
    if not open_intents:
        return []
    quiet = 0.0
    told: set[str] = set()

    def once(text: str) -> None:
        if text not in told:
            told.add(text)
            say(text)

    while True:
        names = [each.name for each in open_intents]
        view = slurm.look(names, min(each.at for each in open_intents))
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


def _settle_local(directory: Path, ledger: Ledger, submission: Submission, say: Say) -> None:
    """Find out whether a local queue has a submission, when no process is starting one."""
    if _starts_here(submission):
        say(f"waiting for the local queue of {submission.job} to start")
        while _starts_here(submission):
            time.sleep(_POLL_SECONDS)
    if submission.token in read_queues(directory):
        ledger.submitted(submission.token)
    elif submission.host == os.uname().nodename:
        ledger.gone(submission.token, "the process that submitted it ended before the local queue had it")


def _starts_here(submission: Submission) -> bool:
    """Tell whether a local queue is being started for a submission. (A running cell has the token in its command line, too.)"""
    return submission.host == os.uname().nodename and any(
        {STARTER, submission.token} <= set(process.info["cmdline"] or ())
        for process in psutil.process_iter(["cmdline"])
    )


def open_ledger(directory: Path, plan: Plan, slurm: Slurm | None, here: bool, say: Say) -> Ledger:
    """Open a plan's ledger, or rebuild it if it was lost. It is never replaced by an empty one silently.

    Args:
        slurm: is asked for jobs of this plan if no submission is recorded; None for the local executor.
        here: continue although the plan was submitted from another copy of its directory.

    Raises:
        HpcrlError: Slurm has jobs of this plan that are not recorded here, or this is a copy of a plan that
            was submitted elsewhere.
    """
    path = directory / FILE
    if path.exists() and path.stat().st_size:
        try:
            ledger = Ledger(directory)
        except DamagedLedger as error:
            kept = _put_aside(path)
            say(f"{error.what}: it is rebuilt (the old one is kept as {kept.name})")
        else:
            _check_place(directory, ledger, here, say)
            return ledger
    elif path.exists():
        path.unlink()
    damaged: list[Path] = []
    known = list(read_submissions(directory, damaged))
    if not known and not damaged and slurm and not here:
        _check_slurm(directory, plan, slurm, say)
    for broken in damaged:
        _check_damaged(directory, broken, slurm)
    for broken in damaged:
        kept = broken.rename(broken.with_name(f"{broken.name}.damaged"))
        say(f"{broken}: is damaged; Slurm has no live job of it, so it is left out (kept as {kept.name})")
    for each in known:
        if not (directory / SUBMISSIONS / each.token).exists():
            write_submission(directory, each)  # it was renamed, and its cells look for it
    before = Path(known[-1].directory) if known else directory
    copied = _stands_elsewhere(directory, before)
    if copied and not here:
        raise HpcrlError(f"{directory}: is a copy of {before}, and that plan was submitted: {_GO_ON}")
    ledger = Ledger(directory, create=True)
    for each in known:
        ledger.adopt(each)
    if copied:
        ledger.leave_to(str(before))
    if known:
        say(f"{path}: was lost; rebuilt from {count(len(known), 'submission')} and Slurm's answers")
    return ledger


def _check_damaged(directory: Path, path: Path, slurm: Slurm | None) -> None:
    """Make sure that no job of an unreadable submission runs any more: nobody knows which cells it granted.

    Raises:
        HpcrlError: a job runs, or Slurm does not answer.
    """
    what = f"{path}: is damaged, and the ledger that knew its cells is lost"
    if slurm is None or b'"local"' in path.read_bytes():
        raise HpcrlError(
            f"{what}: make sure that none of its cells runs any more (ps, squeue), remove the file, and run `hpcrl submit` again"
        )
    jobs = {job.name for generation in every_generation(directory) for job in generation.jobs}
    names = [f"{job}.{path.name}" for job in sorted(jobs)]
    view = slurm.look(names, path.stat().st_mtime)
    if view.queue:
        raise HpcrlError(
            f"{what}. Slurm does not say whether its job runs ({view.queue}): nothing was submitted; run `hpcrl submit` again "
            "when Slurm answers"
        )
    live = [
        job_id
        for name in names
        for job_id, tasks in view.jobs.get(name, {}).items()
        if any(each.state in RUNNING | WAITING for each in tasks.values())
    ]
    if live:
        raise HpcrlError(
            f"{what}. Its job {', '.join(live)} still waits or runs: wait for its end or cancel it (scancel {' '.join(live)}), "
            "then run `hpcrl submit` again"
        )


def _put_aside(path: Path) -> Path:
    number = 1
    while (kept := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    path.rename(kept)
    for leftover in path.parent.glob(f"{path.name}-journal"):
        leftover.unlink()
    return kept


def _stands_elsewhere(directory: Path, before: Path) -> bool:
    """Tell whether a plan is a copy of one that still exists where it was submitted: both would run the remaining cells."""
    try:
        if before.resolve() == directory.resolve() or not (before / FILE).exists():
            return False
        same = (directory / FILE).exists() and (before / FILE).samefile(directory / FILE)
        return not same and read_plan(before).id == read_plan(directory).id
    except (OSError, HpcrlError):
        return False


def refuse_copy(directory: Path, ledger: Ledger, advice: str) -> None:
    """Refuse to act in a copy of a plan whose original still exists: the jobs belong to the original.

    Raises:
        HpcrlError: this is such a copy.
    """
    before = Path(ledger.directory)
    if _stands_elsewhere(directory, before):
        raise HpcrlError(f"{directory}: is a copy of {before}, and that plan was submitted: {advice}")


def _check_place(directory: Path, ledger: Ledger, here: bool, say: Say) -> None:
    """Refuse to submit from a copy of a plan whose original still exists, or leave out what the original has submitted."""
    before = Path(ledger.directory)
    if before == directory.resolve():
        return
    if not here:
        try:
            refuse_copy(directory, ledger, _GO_ON)
        except HpcrlError:
            ledger.close()
            raise
    elif _stands_elsewhere(directory, before):
        say(
            f"{directory}: is a copy of {before}: cells that have not completed here run here too, even if they run there"
        )
        ledger.leave_to(str(before))
    ledger.moved(str(directory.resolve()))


def _check_slurm(directory: Path, plan: Plan, slurm: Slurm, say: Say) -> None:
    """Look for jobs of this plan in Slurm before its first submission: its ledger may have been lost with all other files."""
    jobs, notes = slurm.own_jobs(plan_prefix(plan.id))
    for note in notes:
        say(f"{note}: therefore hpcrl could not check whether this plan was submitted before")
    if jobs:
        place = str(directory.resolve())
        where = sorted({each.directory for each in jobs if each.directory} - {place})
        live = sum(each.live for each in jobs)
        told = f"{directory}: no submission is known here, but Slurm has {count(len(jobs), 'job')} of this plan (live: {live}), submitted"
        if where:
            raise HpcrlError(f"{told} from {', '.join(where)}: continue there, or run all cells here too with --here")
        raise HpcrlError(
            f"{told} from an earlier plan in this directory, which is gone with its records: run all cells again with --here"
        )
