"""The verbs of the command line, for Python: plan, submit, wait, status, cancel, collect, report.

    from hpcrl import api

    planned = api.plan("mine.yaml", cluster="sol", output="mine-plan", settings={"seeds": 10})
    api.submit("mine-plan")
    status = api.wait("mine-plan", retry=True)
    api.collect(["mine-plan"], "dataset")

Every function raises :class:`hpcrl.errors.HpcrlError` with one sentence that says what a user can mend; requests that
must be mended raise its subclass :class:`hpcrl.errors.UsageError`. What the command line says on standard error goes to
the logger ``hpcrl``. Importing this module imports no stage and no framework.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from hpcrl.errors import HpcrlError, UsageError, count

if TYPE_CHECKING:
    from hpcrl.collect.merge import Collected
    from hpcrl.formats.lease import Say
    from hpcrl.formats.plan import Plan
    from hpcrl.plan.before import Changes
    from hpcrl.report.write import Written
    from hpcrl.submit.status import Cancelled, PlanStatus
    from hpcrl.submit.submission import Submitted

__all__ = ["Planned", "cancel", "collect", "follow", "plan", "report", "status", "submit", "test_only", "wait"]

Place: TypeAlias = str | PathLike[str]

Executor: TypeAlias = Literal["auto", "slurm", "local"]

log = logging.getLogger("hpcrl")
SILENT_SECONDS = 1800.0  # of Slurm's, after which waiting ends


@dataclass(frozen=True)
class Planned:
    """What :func:`plan` made: the manifest, and where it stands (None after a dry run).

    `written` is False where the same plan stood there already. `changes` compares with the generation before.
    """

    plan: Plan
    directory: Path | None
    written: bool
    changes: Changes | None

    @property
    def notes(self) -> list[str]:
        """What a user should know, a sentence each, without a full stop."""
        from hpcrl.plan.limits import in_words

        of_changes = self.changes.in_words(self.plan.generation) if self.changes else []
        return [*of_changes, *in_words(self.plan), *self.plan.totals.get("notes", ())]


def plan(
    study: Place | None = None,
    cluster: Place = "workstation",
    output: Place = "plan",
    *,
    settings: Mapping[str, Any] | Iterable[str] = (),
    account: str | None = None,
    email: str | None = None,
    environments_root: str | None = None,
    chain: Literal["parallel", "sequential", "staged"] | None = None,
    precise_phases: bool = False,
    cells_per_task: int | None = None,
    reuse: Iterable[Place] = (),
    notify: str | None = None,
    strict: bool = False,
    allow_retired: bool = False,
    dry_run: bool = False,
    extend: bool = True,
    path: Iterable[Place] = (),
    say: Say = log.warning,
) -> Planned:
    """Turn a study and a cluster into a plan directory, as ``hpcrl plan`` does.

    Args:
        study: a name or a YAML file. None: the study that the profile names.
        cluster: a profile's name or YAML file.
        output: the plan directory. A plan of the same study and cluster that stands there gets its next generation.
        settings: values instead of the study's: ``{"resources.time": "02:00:00", "seeds": 10}``, or texts ``KEY=VALUE``.
        reuse: plans and datasets whose completed cells are left out.
        strict: fail when a cell has no place on the cluster.
        dry_run: write nothing. `extend` tells whether the plan in `output` counts then.
        path: directories that are searched first for clusters/, jobs/, envs/ and templates/.

    Raises:
        SpecError: a file has a fault; the message names file and line.
        UsageError: the study cannot be planned there.
        HpcrlError: the plan cannot be written.
    """
    from hpcrl.plan.before import read_before
    from hpcrl.plan.directory import write_plan
    from hpcrl.plan.make import UserChoices, make_plan
    from hpcrl.plan.reuse import completed_cells
    from hpcrl.spec.library import Library
    from hpcrl.spec.study import read_notify
    from hpcrl.spec.user import account_for, email_for, read_settings

    own = read_settings()
    texts = (f"{key}={value}" for key, value in settings.items()) if isinstance(settings, Mapping) else settings
    choices = UserChoices(
        account=account_for(str(cluster), account, own),
        email=email_for(email, own),
        environments_root=environments_root or own.environments_root,
        chain=chain,
        precise_phases=precise_phases,
        allow_retired=allow_retired,
        cells_per_task=cells_per_task,
        notify=None if notify is None else read_notify(notify),
        notify_by_default=own.notify,
        settings=tuple(texts),
    )
    directory = Path(output)
    before = read_before(directory) if extend else None
    library = Library([Path(each) for each in path])
    name = None if study is None else str(study)
    completed = completed_cells([Path(each) for each in reuse])
    files = make_plan(library, str(cluster), name, choices, before, completed)
    made = files.plan
    if strict and made.unplaced:
        first, number = made.unplaced[0], made.totals["unplaced"]
        raise UsageError(
            f"{count(number, 'cell')} {'has' if number == 1 else 'have'} no place on {made.cluster['title']} (--strict): {first.reason}"
        )
    if not made.cell_jobs():
        first = made.unplaced[0]
        hint = f"; {first.nearest}" if first.nearest else ""
        raise UsageError(
            f"no cell of {made.study['name']} has a place on {made.cluster['title']}: {first.reason}{hint}"
        )
    written = False if dry_run else write_plan(files, directory, say)
    return Planned(made, None if dry_run else directory, written, files.changes)


def test_only(directory: Place, *, executor: Executor = "auto") -> dict[str, str | None]:
    """Ask Slurm about every script of a plan; return its objection, or None where it would take the script.

    Raises:
        UsageError: it is no plan, or one for this machine.
        HpcrlError: Slurm is not here.
    """
    from hpcrl.formats.plan import read_plan
    from hpcrl.slurm.client import Slurm
    from hpcrl.submit import submission

    place = Path(directory)
    opened = read_plan(place)
    if _executor(executor, opened, place) == "local":
        raise UsageError("--test-only asks Slurm, and this plan runs on this machine: submit it without --test-only")
    objections = submission.test_only(place, Slurm())
    if objection := _not_built(opened, place):
        objections["environments"] = objection
    return objections


def submit(
    directory: Place,
    *,
    executor: Executor = "auto",
    cells: Iterable[str] = (),
    failed: bool = False,
    again: bool = False,
    here: bool = False,
    retry: bool = False,
    fed: bool = False,
    max_core_hours: float | None = None,
    max_gpu_hours: float | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    say: Say = log.warning,
) -> Submitted:
    """Submit what was never submitted, or failed, as ``hpcrl submit`` does. Doing it twice submits nothing twice.

    Args:
        executor: where to: Slurm, or this machine; ``auto``: what the plan's cluster has.
        cells: only these (the beginnings of their ids).
        failed: only cells that failed. `again`: also cells that have completed.
        here: although this plan is a copy of one that was submitted, or its records are gone.
        retry: failed cells by the study's `retry`, with more time or memory.
        fed: only what was never submitted: the next part of a plan.
        max_core_hours: refuse more, over all attempts; `max_gpu_hours` likewise.
        progress: called with the number of jobs that are submitted, and of all.

    Raises:
        UsageError: it is no plan, a cell does not exist, or the plan is over budget.
        HpcrlError: there is no Slurm here, an environment is missing, or Slurm refuses a job or does not answer.
    """
    from hpcrl.formats.plan import read_plan
    from hpcrl.slurm.client import Slurm
    from hpcrl.submit import submission
    from hpcrl.submit.notification import no_such_command
    from hpcrl.submit.selection import Budget, Choice

    place = Path(directory)
    opened = read_plan(place)
    where = _executor(executor, opened, place)
    if objection := _not_built(opened, place):
        raise HpcrlError(objection)
    if name := no_such_command(opened, place):
        text = f"notify: {name}: no such command on this machine"
        if where == "local":
            raise UsageError(f"{text}, so that the message would be lost: plan again with another `notify`")
        say(f"{text}: the message at the end fails unless the nodes have it")
    if any(job.stage == "report" for job in opened.jobs) and find_spec("altair") is None:
        say("the report at the end will fail: it needs more packages here: pip install 'hpcrl[report]'")
    choice = Choice(tuple(cells), failed, again, here, retry, fed)
    budget = Budget(max_core_hours, max_gpu_hours)
    return submission.submit(place, where, Slurm(), budget, lambda done, total, _: progress(done, total), choice, say)


def follow(directory: Place) -> Iterator[PlanStatus]:
    """Give a plan's status now and then, until everything has ended or waits for a person.

    Raises:
        HpcrlError: Slurm has not answered for half an hour.
    """
    silent = time.monotonic()
    while True:
        found = status(directory)
        yield found
        if not found.live() or found.stuck():
            return
        if found.survey.answered:
            silent = time.monotonic()
        elif time.monotonic() - silent > SILENT_SECONDS:
            raise HpcrlError(
                f"{found.survey.notes[0]}: no answer for {SILENT_SECONDS / 60:.0f} minutes; the jobs go on without this process"
            )
        # Sites ask not to be polled often; the local executor costs nothing to look at.
        scheduler = found.plan.cluster["scheduler"]
        time.sleep(1.0 if scheduler["kind"] == "local" else float(scheduler["poll_interval"]))


def _last(directory: Path) -> PlanStatus:
    *_, found = follow(directory)
    return found


def wait(
    directory: Place,
    *,
    waiting: int = 0,
    retry: bool = False,
    executor: Executor = "auto",
    max_core_hours: float | None = None,
    max_gpu_hours: float | None = None,
    watch: Callable[[Path], PlanStatus] = _last,
    told: Callable[[Submitted], object] = lambda submitted: None,
    say: Say = log.warning,
) -> PlanStatus:
    """Wait until everything has ended; submit what the queue has room for by then, and with `retry` what failed.

    Args:
        waiting: the cells for which the queue had no room, as :func:`submit` told.
        watch: follows the plan to the end of what was submitted. `told` is called after each further submission.

    Raises:
        HpcrlError: as :func:`submit` and :func:`follow` do.
    """
    from hpcrl.submit.following import Following

    place = Path(directory)
    with Following(place, lambda: _send(place, say)) if retry else nullcontext() as following:
        while True:
            found = watch(place)
            if not waiting and not retry:
                return found
            # Cells that were chosen by hand went out once; what the queue had no room for, and retries, go out until nothing is left.
            done = submit(
                place,
                executor=executor,
                retry=retry,
                fed=not retry,
                max_core_hours=max_core_hours,
                max_gpu_hours=max_gpu_hours,
                say=say,
            )
            if not done.jobs:
                return found
            if following:
                following.more_follows()
            waiting = done.waiting
            told(done)


def status(directory: Place) -> PlanStatus:
    """Return how far a plan is: counts of states, the cells with their states and reasons, and notes.

    Raises:
        UsageError: it is no plan.
    """
    from hpcrl.slurm.client import Slurm
    from hpcrl.submit.status import plan_status

    return plan_status(Path(directory), Slurm())


def cancel(directory: Place, cells: Iterable[str] = (), say: Say = log.warning) -> Cancelled:
    """Cancel what waits or runs of a plan, or only some cells (the beginnings of their ids).

    Raises:
        UsageError: it is no plan, or a cell does not exist.
    """
    from hpcrl.slurm.client import Slurm
    from hpcrl.submit.status import cancel as cancel_plan

    return cancel_plan(Path(directory), Slurm(), tuple(cells), say)


def collect(
    plans: Iterable[Place],
    dataset: Place = "dataset",
    *,
    check: bool = False,
    processes: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Collected:
    """Merge the records of plans into a dataset; :func:`hpcrl.load` opens its tables.

    Args:
        check: say what would be merged and what not; write nothing.
        processes: how many read at once. None: one for each core, at most 8.
        progress: called with the number of records that are read, and of all.

    Raises:
        UsageError: a directory is no plan.
        HpcrlError: the dataset cannot be written.
    """
    from hpcrl.collect import merge
    from hpcrl.slurm.client import Slurm

    places = [Path(each) for each in plans]
    if check:
        return merge.check(places, Path(dataset))
    return merge.collect(places, Path(dataset), Slurm(), progress, processes)


def report(
    dataset: Place,
    output: Place = "report",
    *,
    study: str | None = None,
    figures: Iterable[str] = ("png", "svg", "pdf"),
    baseline: Place | None = None,
    grid_intensity: float | None = None,
    path: Iterable[Place] = (),
) -> Written:
    """Write the report of a dataset: one HTML file, figures, CSV and LaTeX tables.

    Args:
        figures: the formats of the figures' files.
        baseline: an older dataset; ``changes`` of the result name what became slower, larger or worse.
        grid_intensity: grams of CO2 equivalent for each kilowatt-hour.

    Raises:
        UsageError: there is no dataset, no such study, or it cannot be told which study is meant.
        HpcrlError: packages of ``hpcrl[report]`` are missing, or it cannot be written.
    """
    from hpcrl.report.write import write_report
    from hpcrl.spec.library import Library

    older = None if baseline is None else Path(baseline)
    library = Library([Path(each) for each in path])
    return write_report(Path(dataset), study, Path(output), tuple(figures), older, library, grid_intensity)


def _executor(asked: Executor, plan: Plan, directory: Path) -> str:
    """Return where a plan goes to.

    Raises:
        HpcrlError: to Slurm, and there is none here.
    """
    by_itself = "slurm" if plan.cluster["scheduler"]["kind"] == "slurm" else "local"
    executor = by_itself if asked == "auto" else asked
    if executor == "slurm" and not shutil.which("sbatch"):
        raise HpcrlError(
            f"the plan is for {plan.cluster['title']}, and there is no sbatch here: copy {directory} to a login node, or use --executor local"
        )
    return executor


def _not_built(plan: Plan, directory: Path) -> str | None:
    """Say which environments are missing that no job of the plan builds: every cell would fail."""
    from hpcrl.environments.build import not_built

    if any(job.stage == "environments" for job in plan.jobs):
        return None
    if not (keys := not_built(plan.environments, plan.cluster["environments"])):
        return None
    return (
        f"not built, and no job of this plan builds them: {', '.join(keys)}: run `hpcrl env create --plan {directory}` first, or plan "
        "with --chain staged"
    )


def _send(plan: Path, say: Say) -> None:
    """Send the message that the last job of the chain left to this process."""
    from hpcrl.slurm.client import Slurm
    from hpcrl.submit.notification import notify

    try:
        say(f"told {notify(plan, Slurm())}")
    except HpcrlError as error:
        say(str(error))
