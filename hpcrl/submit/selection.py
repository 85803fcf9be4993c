"""Which cells of a plan are submitted: the chosen ones, grouped by their requests, within the budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrl.errors import UsageError, amount, suggestion
from hpcrl.formats.finding import find_cells
from hpcrl.formats.ledger import Ledger
from hpcrl.formats.plan import Cell, Job, Plan, every_generation, read_cells
from hpcrl.schedulers.states import COMPLETED, LIVE, NEVER, UNSETTLED, TaskStatus
from hpcrl.schedulers.wanted import Ask, Wanted
from hpcrl.submit.retrying import cause_of, next_ask
from hpcrl.submit.survey import Survey

NOT_SUBMITTED = TaskStatus(NEVER)


@dataclass(frozen=True)
class Budget:
    """The maximum that all attempts of a plan together may request; None: no limit."""

    core_hours: float | None = None
    gpu_hours: float | None = None


@dataclass(frozen=True)
class Choice:
    """Which cells are submitted.

    Args:
        cells: beginnings of ids; empty: all.
        failed: only cells that failed.
        again: also cells that completed.
        here: continue in a copy of a submitted plan, or although the plan's records are gone.
        retry: failed cells by the study's rules, with more time or memory.
        fed: only cells that were never submitted: the next part of a plan that the queue has no room for at once.
        where: ``key=value`` of configurations; of several values of one key, any. Empty: all.
    """

    cells: tuple[str, ...] = ()
    failed: bool = False
    again: bool = False
    here: bool = False
    retry: bool = False
    fed: bool = False
    where: tuple[str, ...] = ()


MISSING_OR_FAILED = Choice()


class Selection:
    """Chooses the cells to submit, grouped by their requests."""

    def __init__(self, directory: Path, plan: Plan, ledger: Ledger, known: Survey, choice: Choice) -> None:
        self._directory = directory
        self._known, self._choice = known, choice
        chosen = chosen_cells(directory, plan, choice)
        self._chosen = None if chosen is None else {cell.id for cell in chosen}
        self._memory: dict[str, bool] = {}
        self._rules = plan.study.retry
        self._tried: Counter[tuple[str, str]] = Counter()
        if choice.retry:
            for submission in ledger.submissions():
                if submission.state == "submitted" and submission.cause != "first" and submission.job in known.ids:
                    self._tried.update(
                        (known.ids[submission.job][task], submission.cause) for task, _ in submission.entries
                    )
        self._last: dict[str, int] = {}
        progress = known.progress
        for attempt in sorted({*progress.begun, *progress.ended}):
            self._last |= dict.fromkeys(progress.begun.get(attempt, ()), attempt)
            self._last |= dict.fromkeys(progress.ended.get(attempt, ()), attempt)
        self._retried: set[int] = set()  # waves with a cell that is retried
        self.already = 0
        self.left: Counter[str] = Counter()

    def of(self, job: Job) -> list[Wanted]:
        groups: dict[Ask, list[tuple[int, int]]] = {}
        for task, cell in enumerate(self._known.ids[job.name]):
            if self._chosen is not None and cell not in self._chosen:
                continue
            status = self._known.units.get(cell, NOT_SUBMITTED)
            ask = self._ask(job, cell, status)
            if isinstance(ask, Ask):
                groups.setdefault(ask, []).append((task, self._number(cell, status)))
            elif ask:
                self.left[ask] += 1
            else:
                self.already += 1
        return [Wanted(job, ask, tasks) for ask, tasks in groups.items()]

    def _ask(self, job: Job, cell: str, status: TaskStatus) -> Ask | str | None:
        """Return the request of a cell, or why it is not submitted; None if it needs no attempt."""
        if status.state in LIVE or status.state in UNSETTLED:
            return None
        if status.state == NEVER:
            return "never submitted" if self._choice.failed else Ask()
        if status.state == COMPLETED:
            return Ask("again") if self._choice.again else None
        if self._choice.failed and status.state == "CANCELLED":
            return "cancelled: `--failed` leaves out cancelled cells"
        if self._choice.fed:
            return f"{status.state.lower()}: `hpcrl submit` submits it again"
        made = status.submission
        again = Ask("again", made.time, made.memory, made.exclude) if made else Ask("again")
        if not self._choice.retry or any(wave < job.wave for wave in self._retried):
            return again  # a cell that failed for want of an earlier wave's has no fault of its own
        tried = self._tried[cell, cause_of(status.state)]
        ask = next_ask(job, status, tried, self._rules, self._asks_for_memory(job))
        if isinstance(ask, Ask):
            self._retried.add(job.wave)
        return ask

    def _asks_for_memory(self, job: Job) -> bool:
        if job.name not in self._memory:
            self._memory[job.name] = "#SBATCH --mem=" in (self._directory / job.script).read_text(encoding="utf-8")
        return self._memory[job.name]

    def _number(self, cell: str, status: TaskStatus) -> int:
        """Return the number of a cell's next attempt: a new number only if the last attempt has begun.

        So a submission that Slurm lost and finds again cannot run beside its replacement.
        """
        last = max(status.attempt, self._last.get(cell, 0))
        begun = self._known.progress.has_begun(cell, last)
        return last + 1 if begun or last == 0 else last


def chosen_cells(directory: Path, plan: Plan, choice: Choice) -> list[Cell] | None:
    """Return the cells that a choice names, by id or by configuration; None: it names none, so all are meant.

    Raises:
        UsageError: an id is that of no cell, or of several; no cell agrees with a ``key=value``.
    """
    if not choice.cells and not choice.where:
        return None
    named = [cell for cell, _, _ in find_cells(directory, plan, choice.cells)]
    if not choice.where:
        return named
    agreeing = [cell for _, cell in cells_where(directory, choice.where)]
    if choice.cells:
        ids = {cell.id for cell in agreeing}
        agreeing = [cell for cell in named if cell.id in ids]
    if not agreeing:
        cells = "".join(f" --cell {cell}" for cell in choice.cells)
        raise UsageError(f"no cell agrees with{cells}{''.join(f' --where {text}' for text in choice.where)}")
    return agreeing


def cells_where(directory: Path, where: Sequence[str]) -> list[tuple[int, Cell]]:
    """Return the cells, each with its place, that agree with each ``key=value``; of several values of one key, with any.

    Raises:
        UsageError: a text is not ``key=value``, or no cell has such a key.
    """
    wanted: dict[str, set[str]] = {}
    for key, value in map(_pair, where):
        wanted.setdefault(key, set()).add(value)
    agreeing: list[tuple[int, Cell]] = []
    known: set[str] = set()
    for place, cell in enumerate(read_cells(directory)):
        values = {**cell.resources, **cell.config}
        known |= set(values)
        if all(key in values and any(_agrees(key, values[key], text) for text in some) for key, some in wanted.items()):
            agreeing.append((place, cell))
    if unknown := [key for key in wanted if key not in known]:
        raise UsageError(f"--where {unknown[0]}: no cell has this key; {suggestion(unknown[0], known)}")
    return agreeing


def _pair(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise UsageError(f"--where {text}: expected KEY=VALUE, such as framework=jax")
    return key, value


def _agrees(key: str, value: Any, text: str) -> bool:
    """Tell whether a text is how a person may write a value: ``true`` for True, ``1e-3`` for 0.001, ``8G`` for 8192 MiB of memory."""
    if key in ("memory", "time"):  # resources, which a study writes with units
        from hpcrl.spec.quantities import parse_memory, parse_time  # imports Pydantic

        with suppress(ValueError):
            return (parse_memory if key == "memory" else parse_time)(text) == value
    if isinstance(value, bool):
        return text.lower() == str(value).lower()
    if isinstance(value, int | float):
        with suppress(ValueError):
            return float(text) == value
    return str(value) == text


def check_budget(directory: Path, plan: Plan, ledger: Ledger, wanted: Sequence[Wanted], budget: Budget) -> None:
    """Refuse a submission over budget; all attempts of all generations of the plan count.

    Raises:
        UsageError: it requests more than the budget.
    """
    if budget == Budget():
        return
    jobs = {job.name: job for made in every_generation(directory, plan) for job in made.cell_jobs()}
    for name, most in (("core_hours", budget.core_hours), ("gpu_hours", budget.gpu_hours)):
        if most is None:
            continue
        before = sum(
            _hours(jobs[submission.job], name, submission.time) * len(submission.entries)
            for submission in ledger.submissions()
            if submission.job in jobs and submission.state not in ("refused", "gone")
        )
        asked = before + sum(_hours(part.job, name, part.ask.time) * len(part.tasks) for part in wanted)
        if asked > most + 1e-9:
            words = name.replace("_", "-")
            so_far = f" ({amount(before)} of them for attempts so far)" if before else ""
            raise UsageError(
                f"the plan asks for up to {amount(asked)} {words}{so_far}, over the {amount(most)} allowed: shorten `time`, or remove cells"
            )


def _hours(job: Job, name: str, seconds: int | None) -> float:
    """Return the hours that one cell of a job may use."""
    one = float(getattr(job, name)) / job.count
    return one * seconds / job.asked.time if seconds else one
