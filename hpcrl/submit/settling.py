"""Before a plan is submitted: what happened to intents that were never confirmed, and a ledger that was lost."""

from __future__ import annotations

from pathlib import Path

from hpcrl.catalogue.registry import schedulers
from hpcrl.errors import HpcrlError, count
from hpcrl.formats.lease import Say
from hpcrl.formats.ledger import FILE, DamagedLedger, Ledger
from hpcrl.formats.plan import Plan, every_generation, read_plan
from hpcrl.formats.submission import SUBMISSIONS, Submission, plan_prefix, read_submissions, write_submission
from hpcrl.schedulers.interface import at_work, by_scheduler
from hpcrl.slurm.client import RUNNING, WAITING, Slurm

_GO_ON = "continue there, or run the rest here too with --here"


def settle(directory: Path, ledger: Ledger, slurm: Slurm, say: Say) -> list[Submission]:
    """Settle every intent; return those that stay unconfirmed.

    The caller holds the lease, so no other process works on an intent now.
    """
    groups = by_scheduler(ledger.submissions())
    return [
        submission
        for name, made in groups.items()
        for submission in at_work(name).settle(directory, ledger, slurm, made, say)
    ]


def open_ledger(directory: Path, plan: Plan, slurm: Slurm | None, here: bool, say: Say) -> Ledger:
    """Open a plan's ledger, or rebuild it if it was lost. It is never replaced by an empty one silently.

    Args:
        slurm: is asked for jobs of this plan if no submission is recorded; None if jobs run on this machine.
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
    for submission in known:
        if not (directory / SUBMISSIONS / submission.token).exists():
            write_submission(directory, submission)  # it was renamed, and its cells look for it
    before = Path(known[-1].directory) if known else directory
    copied = _stands_elsewhere(directory, before)
    if copied and not here:
        raise HpcrlError(f"{directory}: is a copy of {before}, and that plan was submitted: {_GO_ON}")
    ledger = Ledger(directory, create=True)
    for submission in known:
        ledger.adopt(submission)
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
    here = (name for name, scheduler in schedulers().items() if scheduler.here)
    if slurm is None or any(f'"{name}"'.encode() in path.read_bytes() for name in here):
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
        if any(task.state in RUNNING | WAITING for task in tasks.values())
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
        where = sorted({job.directory for job in jobs if job.directory} - {place})
        live = sum(job.live for job in jobs)
        told = f"{directory}: no submission is known here, but Slurm has {count(len(jobs), 'job')} of this plan (live: {live}), submitted"
        if where:
            raise HpcrlError(f"{told} from {', '.join(where)}: continue there, or run all cells here too with --here")
        raise HpcrlError(
            f"{told} from an earlier plan in this directory, which is gone with its records: run all cells again with --here"
        )
