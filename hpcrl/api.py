"""The commands of hpcrl as Python functions: plan, submit, wait, status, cancel, play, collect, report.

    from hpcrl import api

    planned = api.plan("mine.yaml", cluster="sol", output="mine-plan", settings={"seeds": 10})
    api.submit("mine-plan")
    status = api.wait("mine-plan", retry=True)
    api.collect(["mine-plan"], "dataset")

Every function raises :class:`hpcrl.errors.HpcrlError` with one sentence that says what to do. A wrong request raises its
subclass :class:`hpcrl.errors.UsageError`. The messages that the command line writes to standard error go to the logger
``hpcrl``. Importing this module imports no stage and no framework.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from hpcrl.catalogue.registry import schedulers
from hpcrl.chains import Chain
from hpcrl.errors import HpcrlError, UsageError, count, suggestion

if TYPE_CHECKING:
    from hpcrl.catalogue.registry import Scheduler
    from hpcrl.collect.merge import Collected
    from hpcrl.formats.lease import Say
    from hpcrl.formats.plan import Cell, Plan
    from hpcrl.plan.before import Changes
    from hpcrl.report.write import Written
    from hpcrl.rl.play import Played
    from hpcrl.submit.status import Cancelled, PlanStatus
    from hpcrl.submit.submission import Submitted

__all__ = ["Planned", "cancel", "collect", "follow", "plan", "play", "report", "status", "submit", "test_only", "wait"]

Place: TypeAlias = str | PathLike[str]

Executor: TypeAlias = str  # a scheduler of the catalogue (slurm, local), or "auto": the one of the plan's cluster

log = logging.getLogger("hpcrl")
SILENT_SECONDS = 1800.0  # without an answer from Slurm, after which waiting ends


@dataclass(frozen=True)
class Planned:
    """The result of :func:`plan`: the manifest, and its directory (None after a dry run).

    `written` is False if the directory already contained the same plan. `changes` compares with the previous generation.
    `unplaced_at` says for each of ``plan.unplaced`` where the study asks for what the cluster does not have: ``file:line: key``.
    """

    plan: Plan
    directory: Path | None
    written: bool
    changes: Changes | None
    unplaced_at: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """Notes for the user, one sentence each, without a full stop."""
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
    chain: Chain | None = None,
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
    """Make a plan directory from a study and a cluster, as ``hpcrl plan`` does.

    Args:
        study: a name or a YAML file. None: the study that the profile names.
        cluster: a profile's name or YAML file.
        output: the plan directory. An existing plan of the same study and cluster gets its next generation.
        settings: values that replace the study's: ``{"resources.time": "02:00:00", "seeds": 10}``, or texts ``KEY=VALUE``.
        reuse: plan directories and datasets whose completed cells are left out.
        strict: fail if a cell has no place on the cluster.
        dry_run: write nothing. `extend` tells whether to compare with an existing plan in `output`.
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
    from hpcrl.spec.notify import read_notify
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
    library = Library([Path(folder) for folder in path])
    name = None if study is None else str(study)
    completed = completed_cells([Path(place) for place in reuse])
    files = make_plan(library, str(cluster), name, choices, before, completed)
    made = files.plan
    if strict and made.unplaced:
        first, number = made.unplaced[0], made.totals["unplaced"]
        raise UsageError(
            f"{count(number, 'cell')} {'has' if number == 1 else 'have'} no place on {made.cluster.title} (--strict): "
            f"{files.unplaced_at[0]}: {first.reason}"
        )
    if not made.cell_jobs():
        first = made.unplaced[0]
        hint = f"; {first.nearest}" if first.nearest else ""
        raise UsageError(
            f"no cell of {made.study.name} has a place on {made.cluster.title}: {files.unplaced_at[0]}: {first.reason}{hint}"
        )
    written = False if dry_run else write_plan(files, directory, say)
    return Planned(made, None if dry_run else directory, written, files.changes, files.unplaced_at)


def test_only(directory: Place, *, executor: Executor = "auto") -> dict[str, str | None]:
    """Ask Slurm about every script of a plan. Give its objection for each, or None if it would accept the script.

    Raises:
        UsageError: the directory is not a plan, or the plan is for this machine.
        HpcrlError: there is no Slurm here.
    """
    from hpcrl.formats.plan import read_plan
    from hpcrl.slurm.client import Slurm
    from hpcrl.submit import submission

    place = Path(directory)
    opened = read_plan(place)
    if _scheduler(executor, opened, place).here:
        raise UsageError("--test-only needs Slurm, but this plan runs on this machine: submit it without --test-only")
    objections = submission.test_only(place, Slurm())
    if objection := _not_built(opened, place):
        objections["environments"] = objection
    return objections


def submit(
    directory: Place,
    *,
    executor: Executor = "auto",
    cells: Iterable[str] = (),
    where: Iterable[str] = (),
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
    """Submit the cells that were never submitted or have failed, as ``hpcrl submit`` does. A second call submits nothing twice.

    Args:
        executor: Slurm, or this machine; ``auto``: the one of the plan's cluster.
        cells: only these cells (the beginnings of their ids).
        where: only cells that agree with each of these texts ``key=value``; of several values of one key, with any.
        failed: only failed cells. `again`: also completed cells.
        here: submit even if this plan is a copy of a submitted one, or its records are missing.
        retry: submit failed cells by the study's `retry`, with more time or memory.
        fed: only cells that were never submitted: the next part of a plan.
        max_core_hours: refuse to exceed this sum over all attempts; `max_gpu_hours` in the same way.
        progress: called with the number of submitted jobs, and of all.

    Raises:
        UsageError: the directory is not a plan, a cell does not exist, no cell agrees with `where`, or the plan exceeds the budget.
        HpcrlError: there is no Slurm here, an environment is missing, or Slurm refuses a job or does not answer.
    """
    from hpcrl.formats.plan import read_plan
    from hpcrl.slurm.client import Slurm
    from hpcrl.submit import submission
    from hpcrl.submit.notification import no_such_command
    from hpcrl.submit.selection import Budget, Choice, chosen_cells

    place = Path(directory)
    opened = read_plan(place)
    scheduler = _scheduler(executor, opened, place)
    choice = Choice(tuple(cells), failed, again, here, retry, fed, tuple(where))
    if objection := _not_built(opened, place, chosen_cells(place, opened, choice)):
        raise HpcrlError(objection)
    if name := no_such_command(opened, place):
        text = f"notify: {name}: no such command on this machine"
        if scheduler.here:
            raise UsageError(f"{text}, and the message would be lost: plan again with another `notify`")
        say(f"{text}: the message at the end fails if the nodes do not have it either")
    if any(job.stage == "report" for job in opened.jobs) and find_spec("altair") is None:
        say("the report at the end will fail, because packages are missing here: pip install 'hpcrl[report]'")
    budget = Budget(max_core_hours, max_gpu_hours)
    return submission.submit(
        place, scheduler.name, Slurm(), budget, lambda done, total, _: progress(done, total), choice, say
    )


def follow(directory: Place) -> Iterator[PlanStatus]:
    """Give a plan's status at intervals, until everything has ended or waits for the user.

    Raises:
        HpcrlError: Slurm has not answered for half an hour.
    """
    silent = time.monotonic()
    while True:
        latest = status(directory)
        yield latest
        if not latest.live() or latest.stuck():
            return
        if latest.survey.answered:
            silent = time.monotonic()
        elif time.monotonic() - silent > SILENT_SECONDS:
            raise HpcrlError(
                f"{latest.survey.notes[0]}: no answer for {SILENT_SECONDS / 60:.0f} minutes; the jobs continue without this process: try again later"
            )
        time.sleep(latest.plan.cluster.poll_seconds)


def _last(directory: Path) -> PlanStatus:
    *_, last = follow(directory)
    return last


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
    """Wait until everything has ended. Submit waiting cells when the queue has room and, with `retry`, failed cells.

    Args:
        waiting: the cells for which the queue had no room, from :func:`submit`.
        watch: follows the plan until all submitted cells have ended. `told` is called after each further submission.

    Raises:
        HpcrlError: in the same cases as :func:`submit` and :func:`follow`.
    """
    from hpcrl.submit.following import Following

    place = Path(directory)
    with Following(place, lambda: _send(place, say)) if retry else nullcontext() as following:
        while True:
            latest = watch(place)
            if not waiting and not retry:
                return latest
            # Cells that the user chose are submitted once; waiting cells and retries are submitted until none is left.
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
                return latest
            if following:
                following.more_follows()
            waiting = done.waiting
            told(done)


def status(directory: Place) -> PlanStatus:
    """Return the state of a plan: counts of states, the cells with their states and reasons, and notes.

    Raises:
        UsageError: it is no plan.
    """
    from hpcrl.slurm.client import Slurm
    from hpcrl.submit.status import plan_status

    return plan_status(Path(directory), Slurm())


def cancel(directory: Place, cells: Iterable[str] = (), say: Say = log.warning) -> Cancelled:
    """Cancel the waiting and running cells of a plan, or only some of them (the beginnings of their ids).

    Raises:
        UsageError: it is no plan, a cell does not exist, or other cells wait or run in the same array task.
    """
    from hpcrl.slurm.client import Slurm
    from hpcrl.submit.status import cancel as cancel_plan

    return cancel_plan(Path(directory), Slurm(), tuple(cells), say)


def play(
    place: Place,
    cell: str | None = None,
    *,
    which: str = "best",
    episodes: int = 10,
    seed: int = 0,
    video: Place | None = None,
) -> Played:
    """Let the trained agent of a cell play greedy episodes in its environment.

    Args:
        place: a plan directory, or an agent's file (then without `cell`), which plays in its cell's environment, too, if it lies in its plan.
        cell: the beginning of the cell's id.
        which: ``best`` by evaluation, or ``last``.
        seed: of the starts of episodes; every agent has the same ones.
        video: a file for a video of the episodes, GIF or MP4.

    Raises:
        UsageError: there is no such agent, or its environment cannot be made or drawn here.
        HpcrlError: the video cannot be written.
    """
    from hpcrl.environments.playing import play_anywhere
    from hpcrl.formats.files import check_writable
    from hpcrl.formats.plan import AGENTS, MANIFEST
    from hpcrl.rl.agents import find_agent
    from hpcrl.rl.play import VideoFile

    plan = None if cell is None else Path(place)
    file = Path(place) if plan is None or cell is None else find_agent(plan, cell, which)
    if plan is None and file.parent.name == AGENTS and (file.parent.parent / MANIFEST).is_file():
        plan = file.parent.parent
    if video is not None:
        check_writable(Path(video))
    return play_anywhere(file, plan, episodes, seed, None if video is None else VideoFile(Path(video)))


def collect(
    plans: Iterable[Place],
    dataset: Place = "dataset",
    *,
    check: bool = False,
    processes: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    say: Say = log.warning,
) -> Collected:
    """Merge the records of plans into a dataset; :func:`hpcrl.load` opens its tables.

    Args:
        check: tell which records would be merged; write nothing.
        processes: number of processes that read. None: one per core, at most 8.
        progress: called with the number of records read, and of all.

    Raises:
        UsageError: a directory is no plan.
        HpcrlError: the dataset cannot be written.
    """
    from hpcrl.collect import merge
    from hpcrl.slurm.client import Slurm

    places = [Path(directory) for directory in plans]
    if check:
        return merge.check(places, Path(dataset))
    return merge.collect(places, Path(dataset), Slurm(), progress, processes, say)


def report(
    dataset: Place,
    output: Place = "report",
    *,
    study: str | None = None,
    figures: Iterable[str] = ("png", "svg", "pdf"),
    baseline: Place | None = None,
    grid_intensity: float | None = None,
    usability: Place | None = None,
    videos: Iterable[Place] = (),
    path: Iterable[Place] = (),
) -> Written:
    """Write the report of a dataset: one HTML file, figures, and CSV and LaTeX tables.

    Args:
        figures: the formats of the figures' files.
        baseline: an older dataset; ``changes`` of the result name what became slower, larger or worse; ``incomparable`` says why nothing could be compared.
        grid_intensity: grams of CO2 equivalent per kilowatt-hour.
        usability: a file of ``hpcrl env measure``: the report then has a table of what a framework costs its user.
        videos: plan directories; the page then has videos of the best and the median seed of each configuration.

    Raises:
        UsageError: the dataset or the study does not exist, or the study is not named and the dataset has several.
        HpcrlError: packages of ``hpcrl[report]`` are missing, or the report cannot be written.
    """
    from hpcrl.environments.playing import filmed
    from hpcrl.report.write import write_report
    from hpcrl.spec.library import Library

    older = None if baseline is None else Path(baseline)
    library = Library([Path(folder) for folder in path])
    costs = None if usability is None else Path(usability)
    return write_report(
        Path(dataset), study, Path(output), tuple(figures), older, library, grid_intensity, costs,
        tuple(Path(clip) for clip in videos), filmed,
    )  # fmt: skip


def _scheduler(asked: Executor, plan: Plan, directory: Path) -> Scheduler:
    """Return the scheduler that gets the jobs of a plan.

    Raises:
        UsageError: there is no such scheduler.
        HpcrlError: its command is not here.
    """
    if asked != "auto" and asked not in schedulers():
        raise UsageError(f"no scheduler {asked!r}; {suggestion(asked, schedulers())}")
    scheduler = plan.cluster.scheduler if asked == "auto" else schedulers()[asked]
    if scheduler.command and not shutil.which(scheduler.command):
        raise HpcrlError(
            f"the plan is for {plan.cluster.title}, but there is no {scheduler.command} here: copy {directory} to a login node, or use --executor local"
        )
    return scheduler


def _not_built(plan: Plan, directory: Path, cells: Sequence[Cell] | None = None) -> str | None:
    """Check that no environment is missing that no job of the plan builds, because its cells would fail.

    Args:
        cells: the cells that will run; None: all.
    """
    from hpcrl.environments.build import not_built
    from hpcrl.formats.plan import read_cells

    if any(job.stage == "environments" for job in plan.jobs):
        return None
    unused: set[str] = set()
    if cells is not None:
        unused = {cell.environment for cell in read_cells(directory, plan)} - {cell.environment for cell in cells}
    needed = [environment for environment in plan.environments if environment.key not in unused]
    if not (keys := not_built(needed, plan.cluster.environments)):
        return None
    return (
        f"environments {', '.join(keys)}: not built, and no job of this plan builds them: run `hpcrl env create --plan {directory}` first, or plan "
        "with --chain staged"
    )


def _send(plan: Path, say: Say) -> None:
    """Send the message that the last job of the chain leaves to this process."""
    from hpcrl.slurm.client import Slurm
    from hpcrl.submit.notification import notify

    try:
        say(f"told {notify(plan, Slurm())}")
    except HpcrlError as error:
        say(str(error))
