"""The progress of a plan, for people and programs, and cancelling."""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.attempts import read_holder
from hpcrl.formats.files import open_of_stranger
from hpcrl.formats.finding import find_cells
from hpcrl.formats.ledger import FILE, DamagedLedger, Ledger
from hpcrl.formats.memory import without_gc
from hpcrl.formats.plan import Cell, Job, Plan, cells_at, read_cells, read_plan
from hpcrl.formats.submission import read_submissions
from hpcrl.schedulers.interface import at_work, by_scheduler
from hpcrl.schedulers.states import (
    COMPLETED,
    LIVE,
    NEVER,
    UNCONFIRMED,
    UNKNOWN,
    UNSETTLED,
    TaskStatus,
)
from hpcrl.slurm.client import SBATCH_SECONDS, WAITING, Slurm
from hpcrl.slurm.reasons import is_stuck
from hpcrl.submit.details import Detail, details_of, is_failure, with_last_line
from hpcrl.submit.failures import counted
from hpcrl.submit.selection import cells_where
from hpcrl.submit.survey import Survey, survey

if TYPE_CHECKING:
    from hpcrl.formats.lease import Say

_NEVER = TaskStatus(NEVER)
_LOOKS = (0.3, 0.7, 1.0, 1.0)  # seconds before each check of cancelled tasks
_MOST_NAMES = 20  # cells in a message


@dataclass(frozen=True)
class CellStatus:
    """One cell with its state; `progress` is (steps, of how many) while it runs."""

    cell: Cell
    job: str
    task: int
    status: TaskStatus
    progress: tuple[int, int] | None = None

    @property
    def log(self) -> Path | None:
        log = self.status.log
        return Path(log) if log else None


@dataclass(frozen=True)
class PlanStatus:
    """A whole plan. Cells are read only on demand, because a plan may have 100,000."""

    directory: Path
    plan: Plan
    survey: Survey
    stages: dict[str, TaskStatus]
    details: dict[str, Detail]

    @cached_property
    def names(self) -> list[str]:
        """The id of every cell in the plan's order."""
        return list(chain.from_iterable(self.survey.ids[job.name] for job in self.plan.cell_jobs()))

    @cached_property
    def statuses(self) -> list[TaskStatus]:
        """The status of every cell in the plan's order."""
        units = self.survey.units
        explained = {
            name: units[name]._replace(reason=units[name].reason or detail.reason)
            for name, detail in self.details.items()
            if detail.reason
        }
        statuses = units | explained if explained else units
        return [statuses.get(name, _NEVER) for name in self.names]

    def counts(self) -> dict[str, int]:
        return dict(self._counts.most_common())

    @cached_property
    def _counts(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for (state, _), count in self._reasons.items():
            counts[state] += count
        return counts

    @cached_property
    def _reasons(self) -> Counter[tuple[str, str | None]]:
        return Counter([(status.state, status.reason) for status in self.statuses])

    @cached_property
    def failures(self) -> frozenset[str]:
        """The failure states that the cells have."""
        return frozenset(state for state in self._counts if is_failure(state))

    @property
    def notes(self) -> list[str]:
        """Notes for the user, one line each, among them the commands that did not answer."""
        held = len(self.survey.held)
        words = f"tasks that Slurm holds although their cells have completed: {held}: `hpcrl submit` or `hpcrl cancel` removes them"
        return [*self.survey.notes, *([words] if held else [])]

    def pick(self, wanted: Sequence[int]) -> list[CellStatus]:
        """Return the cells at some places of the plan."""
        cells = cells_at(self.directory, self.plan, set(wanted))
        return [self._cell(cells[place], place) for place in wanted]

    def _cell(self, cell: Cell, place: int) -> CellStatus:
        detail = self.details.get(cell.id)
        job = self._jobs[bisect_right(self._jobs, place, key=lambda job: job.first) - 1]
        progress = detail.progress if detail else None
        return CellStatus(cell, job.name, place - job.first, self.statuses[place], progress)

    @cached_property
    def _jobs(self) -> list[Job]:
        """The jobs of cells, in the order of their cells."""
        return sorted(self.plan.cell_jobs(), key=lambda job: job.first)

    @cached_property
    def cells(self) -> list[CellStatus]:
        return [self._cell(cell, place) for place, cell in enumerate(read_cells(self.directory))]

    def failed(self) -> list[str]:
        if not self.failures:
            return []
        failures = self.failures
        return [name for name, status in zip(self.names, self.statuses, strict=True) if status.state in failures]

    def live(self) -> bool:
        """Tell whether any cell or stage still waits or runs, or may do so."""
        states = {*self._counts, *(stage.state for stage in self.stages.values())}
        return bool(states & (LIVE | UNSETTLED))

    def stuck(self) -> bool:
        """Tell whether everything live waits for something that does not happen by itself."""
        live = [
            status
            for status in [*self.statuses, *self.stages.values()]
            if status.state in LIVE or status.state in UNSETTLED
        ]
        held = [status for status in live if _is_held(status)]
        waits = [status for status in live if status.slurm and status.slurm.reason == "Dependency"]
        return bool(held) and len(held) + len(waits) == len(live)

    def causes(self) -> dict[str, int]:
        """Count failed stages and cells by cause, the most frequent first."""
        failed: list[tuple[str | None, TaskStatus]] = []
        failed += [(None, status) for status in self.stages.values() if is_failure(status.state)]
        if self.failures:
            cells = zip(self.names, self.statuses, strict=True)
            failed += [(name, status) for name, status in cells if status.state in self.failures]
        return counted(failed)

    def unsettled(self) -> dict[str, int]:
        """Count waiting and unknown cells by reason."""
        waiting = UNSETTLED | {"PENDING"}
        if not waiting & set(self._counts):
            return {}
        reasons = Counter({key: count for key, count in self._reasons.items() if key[0] in waiting})
        return {f"{state}: {reason}": count for (state, reason), count in reasons.most_common(5) if reason}

    def places(self, only_failed: bool, where: Sequence[str]) -> list[int]:
        """Return the places of the cells that failed, if only those are wanted, and that agree with
        each ``key=value``; of several values of one key, with any.

        Raises:
            UsageError: a text is not ``key=value``, or no cell has such a key.
        """
        failed = set(self.failed()) if only_failed else None
        every = [place for place, _ in cells_where(self.directory, where)] if where else range(len(self.names))
        return [place for place in every if failed is None or self.names[place] in failed]

    @cached_property
    def differing(self) -> tuple[str, ...]:
        """The resources in which the plan's cells differ."""
        jobs = [job.resources for job in self.plan.cell_jobs()]
        names = dict.fromkeys(name for resources in jobs for name in resources)
        return tuple(name for name in names if len({str(resources.get(name)) for resources in jobs}) > 1)

    def lines(self, only: Container[str] | None = None) -> Iterator[str]:
        """Give each cell, or each named cell, as a line of JSON: its line of the plan with its state."""
        # Thousands of cells differ only in their places, so the rest is formatted once.
        known: dict[tuple[object, ...], list[str]] = {}
        details = {name: detail.progress for name, detail in self.details.items() if detail.progress}
        cells = zip(self.names, self.statuses, strict=True)
        with open_of_stranger(self.directory / self.plan.cells_file) as file:
            for job in self.plan.cell_jobs():
                place = f', "job": "{job.name}", "task": '
                some = zip(islice(file, job.count), islice(cells, job.count), strict=True)
                for task, (line, (name, status)) in enumerate(some):
                    if only is not None and name not in only:
                        continue
                    state, attempt, made, index, slurm, reason = status
                    progress = details.get(name)
                    alike = (state, attempt, made and made.token, slurm and slurm.job_id, reason, progress)
                    parts = known.get(alike)
                    if parts is None:
                        parts = known[alike] = _around_index(status, progress)
                    yield f"{line[: line.rindex('}')]}{place}{task}{str(index).join(parts)}"


# A marker in place of an array index, to find its position in the text.
_MARK = 10**18


def _around_index(status: TaskStatus, progress: tuple[int, int] | None) -> list[str]:
    """Format a cell for `hpcrl status --json`, split at the index in its submission's array."""
    marked = status._replace(index=_MARK)
    # States, keys and logs contain no characters that JSON escapes.
    parts = f'"slurm": {_quoted(marked.key)}, "log": {_quoted(marked.log)}, '.split(str(_MARK))
    parts[0] = f', "state": "{status.state}", "attempt": {status.attempt}, {parts[0]}'
    parts[-1] += f'"progress": {list(progress) if progress else "null"}, "reason": {_json(status.reason)}}}'
    return parts


def _quoted(name: str | None) -> str:
    return f'"{name}"' if name else "null"


def _is_held(status: TaskStatus) -> bool:
    """Tell whether the user must act: release a job, or run `hpcrl submit` to settle an old submission."""
    made = status.submission
    if status.state == UNCONFIRMED:
        return made is not None and made.state == "intent" and time.time() - made.at > SBATCH_SECONDS + 60
    return status.slurm is not None and status.state in WAITING and is_stuck(status.slurm.reason)


@cache
def _json(text: str | None) -> str:
    return json.dumps(text, ensure_ascii=False)


def _check_lost(directory: Path) -> None:
    """Make sure that a missing ledger never existed.

    Raises:
        DamagedLedger: something was submitted.
    """
    damaged: list[Path] = []
    if any(read_submissions(directory, damaged)) or damaged:
        raise DamagedLedger(f"{directory / FILE}: is missing")


def surveyed(directory: Path, plan: Plan, slurm: Slurm) -> Survey:
    """Survey a plan, even if nothing was submitted, because its cells may have been run by hand.

    Raises:
        DamagedLedger: the ledger was lost, and something was submitted.
    """
    if not (directory / FILE).exists():
        _check_lost(directory)
        return survey(directory, plan, None, slurm)
    ledger = Ledger(directory)
    try:
        return survey(directory, plan, ledger, slurm)
    finally:
        ledger.close()


@without_gc()
def plan_status(directory: Path, slurm: Slurm) -> PlanStatus:
    """Return the status of a whole plan, with details from the records and logs of running and failed cells."""
    plan = read_plan(directory)
    known = surveyed(directory, plan, slurm)
    stages = {
        job.stage: with_last_line(directory, job, known.units[job.name])
        for job in plan.jobs
        if job.stage != "cells" and job.name in known.units
    }
    return PlanStatus(directory, plan, known, stages, details_of(directory, plan, known))


@dataclass(frozen=True)
class Cancelled:
    """How many cells and stages were cancelled, and how many had been before and had not ended.

    Args:
        completed: cells and stages that completed before the signal reached them.
        unsettled: cells and stages of which nobody knows whether they wait or run: they were not cancelled.
        held: removed tasks that Slurm held although their cells had completed.
    """

    cells: int
    stages: int = 0
    earlier: int = 0
    completed: int = 0
    unsettled: int = 0
    held: int = 0


def cancel(directory: Path, slurm: Slurm, cells: Sequence[str], say: Say = lambda text: None) -> Cancelled:
    """Cancel the named cells, or everything that still waits or runs.

    Every job of the plan that Slurm has is cancelled, even if sbatch never confirmed it.

    Args:
        cells: beginnings of ids; empty: all. Cells of older generations count too.

    Raises:
        UsageError: other cells wait or run in the array task of a named one, and would end with it.
        HpcrlError: Slurm does not answer.
    """
    from hpcrl.formats.lease import held_lease
    from hpcrl.formats.processes import end
    from hpcrl.submit.settling import refuse_copy, settle

    plan = read_plan(directory)
    if not (directory / FILE).exists():
        _check_lost(directory)
    chosen = set()
    for found, job, _ in find_cells(directory, plan, cells, older=True):
        chosen.add(found.id)
        if job not in plan.jobs:
            say(f"cell {found.id} belongs to an older generation of the plan and is no longer in the study")
    with held_lease(directory, "cancel", say):
        ledger = Ledger(directory)
        try:
            refuse_copy(directory, ledger, "cancel there")
            settle(directory, ledger, slurm, say)
            known = survey(directory, plan, ledger, slurm)
            if not known.answered and any(task.state == UNKNOWN for task in known.units.values()):
                raise HpcrlError(
                    f"{'; '.join(known.notes)}: nothing was cancelled; run `hpcrl cancel` again when Slurm answers"
                )
            wanted = {name: task for name, task in known.units.items() if not cells or name in chosen}
            live = {name: task for name, task in wanted.items() if task.state in LIVE or _is_handed_over(task)}
            unsettled = sum(task.state in UNSETTLED for task in wanted.values()) - sum(
                map(_is_handed_over, live.values())
            )
            if cells:
                _check_tasks(known.units, live)
            asked = ledger.cancelled()
            earlier = {
                name for name, task in live.items() if task.submission and (task.submission.token, task.index) in asked
            }
            by_token: dict[str, list[int]] = {}
            by_name: dict[str, dict[str, TaskStatus]] = {}
            for name, status in live.items():
                if status.submission is None:  # it was lost with the ledger
                    end(read_holder(directory, name, status.attempt))
                    continue
                by_token.setdefault(status.submission.token, []).append(status.index)
                by_name.setdefault(status.submission.executor, {})[name] = status
            notes = [ledger.cancel(token, indices) for token, indices in by_token.items()]
            try:
                for scheduler, made in by_scheduler(ledger.taken()).items():
                    some = by_name.get(scheduler, {})
                    at_work(scheduler).cancel(directory, ledger, slurm, some, () if cells else made)
            except HpcrlError as error:
                ledger.take_back(notes)
                raise HpcrlError(
                    f"{error}: it is not known what was cancelled: run `hpcrl cancel` again when Slurm answers"
                ) from None
            completed = _completed(directory, plan, ledger, slurm, live)
            ended = live.keys() - completed - earlier
            stages = len(ended & {job.name for job in plan.jobs if job.stage != "cells"})
            held = 0 if cells else len(known.held)
            return Cancelled(len(ended) - stages, stages, len(earlier - completed), len(completed), unsettled, held)
        finally:
            ledger.close()


def _is_handed_over(status: TaskStatus) -> bool:
    """Tell whether Slurm took a task that it does not list yet."""
    made = status.submission
    return status.state == UNCONFIRMED and made is not None and made.state == "submitted"


def _check_tasks(units: Mapping[str, TaskStatus], chosen: Mapping[str, TaskStatus]) -> None:
    """Make sure that nothing else waits or runs in the array tasks of the chosen cells: a scheduler ends only whole tasks.

    Raises:
        UsageError: something does.
    """
    tasks = {(status.submission.token, status.index) for status in chosen.values() if status.submission}
    beside = [
        name
        for name, status in units.items()
        if name not in chosen
        and status.state in LIVE
        and status.submission
        and (status.submission.token, status.index) in tasks
    ]
    if beside:
        more = f" and {len(beside) - _MOST_NAMES} more" if len(beside) > _MOST_NAMES else ""
        raise UsageError(
            f"other cells of the same array tasks would end, too ({', '.join(beside[:_MOST_NAMES])}{more}): nothing was cancelled; "
            "name these cells with --cell as well, or wait until they have ended"
        )


def _completed(directory: Path, plan: Plan, ledger: Ledger, slurm: Slurm, live: Collection[str]) -> set[str]:
    """Return the tasks that completed nevertheless, when all have ended or after a few checks."""
    completed: set[str] = set()
    for pause in _LOOKS if live else ():
        time.sleep(pause)
        units = survey(directory, plan, ledger, slurm).units
        completed = {name for name in live if units[name].state == COMPLETED}
        if not any(units[name].state in LIVE for name in live):
            break
    return completed
