"""How far a plan is, for people and programs; and the log of a cell, and cancelling."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from hpcrl.errors import HpcrlError, UsageError, suggestion
from hpcrl.formats.attempts import read_holder
from hpcrl.formats.files import open_of_stranger
from hpcrl.formats.ledger import FILE, DamagedLedger, Ledger
from hpcrl.formats.memory import without_gc
from hpcrl.formats.plan import RECORDS, Cell, Job, Plan, cells_at, find_cell, read_cells, read_plan
from hpcrl.formats.queues import read_queues
from hpcrl.formats.submission import read_submissions
from hpcrl.slurm.client import RUNNING, SBATCH_SECONDS, WAITING, Slurm
from hpcrl.slurm.reasons import is_stuck
from hpcrl.submit.failures import counted, own_last_line, without_a_word
from hpcrl.submit.judging import (
    CANCELLED,
    COMPLETED,
    FAILED,
    LIVE,
    LOST,
    NEVER,
    UNCONFIRMED,
    UNKNOWN,
    UNSETTLED,
    TaskStatus,
)
from hpcrl.submit.survey import Survey, attempt_name, log_of, survey

if TYPE_CHECKING:
    from hpcrl.formats.lease import Say

# Failed and running cells whose records and logs are looked into; of more, states alone are told.
DETAILS = 500
_NEVER = TaskStatus(NEVER)
_LOOKS = (0.3, 0.7, 1.0, 1.0)  # seconds before each look at what became of cancelled tasks
# What ended a cell from outside: its log does not say why.
_NOT_ITS_FAULT = frozenset({CANCELLED, LOST, "NODE_FAIL", "PREEMPTED"})


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
        log = log_of(self.status)
        return Path(log) if log else None


@dataclass(frozen=True)
class _Detail:
    progress: tuple[int, int] | None
    reason: str | None


@dataclass(frozen=True)
class PlanStatus:
    """A whole plan. Cells are read only where they are asked for: a plan may have 100,000."""

    directory: Path
    plan: Plan
    survey: Survey
    stages: dict[str, TaskStatus]
    details: dict[str, _Detail]

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
        found = units | explained if explained else units
        return [found.get(name, _NEVER) for name in self.names]

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
        """The states among those of the cells that say that one failed."""
        return frozenset(state for state in self._counts if is_failure(state))

    @property
    def notes(self) -> list[str]:
        """What could not be asked, and what a user should know, a line each."""
        held = len(self.survey.held)
        words = f"tasks that Slurm holds although their cells have completed: {held}: `hpcrl submit` or `hpcrl cancel` removes them"
        return [*self.survey.notes, *([words] if held else [])]

    def pick(self, wanted: Sequence[int]) -> list[CellStatus]:
        """Return the cells at some places of the plan."""
        cells = cells_at(self.directory, self.plan, set(wanted))
        return [self._cell(cells[place], place) for place in wanted]

    def _cell(self, cell: Cell, place: int) -> CellStatus:
        detail = self.details.get(cell.id)
        job = next(job for job in self.plan.cell_jobs() if job.first <= place < job.first + job.count)
        progress = detail.progress if detail else None
        return CellStatus(cell, job.name, place - job.first, self.statuses[place], progress)

    @cached_property
    def cells(self) -> list[CellStatus]:
        return [self._cell(cell, place) for place, cell in enumerate(read_cells(self.directory))]

    def failed(self) -> list[str]:
        if not self.failures:
            return []
        failures = self.failures
        return [name for name, status in zip(self.names, self.statuses, strict=True) if status.state in failures]

    def live(self) -> bool:
        """Tell whether anything still waits or runs, or may do so."""
        states = {*self._counts, *(each.state for each in self.stages.values())}
        return bool(states & (LIVE | UNSETTLED))

    def stuck(self) -> bool:
        """Tell whether all that is live waits for something that does not happen by itself."""
        live = [
            each for each in [*self.statuses, *self.stages.values()] if each.state in LIVE or each.state in UNSETTLED
        ]
        held = [each for each in live if _is_held(each)]
        waits = [each for each in live if each.slurm and each.slurm.reason == "Dependency"]
        return bool(held) and len(held) + len(waits) == len(live)

    def causes(self) -> dict[str, int]:
        """Count failed stages and cells by cause, the most frequent first."""
        failed: list[tuple[str | None, TaskStatus]] = []
        failed += [(None, each) for each in self.stages.values() if is_failure(each.state)]
        if self.failures:
            cells = zip(self.names, self.statuses, strict=True)
            failed += [(name, status) for name, status in cells if status.state in self.failures]
        return counted(failed)

    def unsettled(self) -> dict[str, int]:
        """Count by reason what waits, or of which nobody knows."""
        waiting = UNSETTLED | {"PENDING"}
        if not waiting & set(self._counts):
            return {}
        reasons = Counter({each: count for each, count in self._reasons.items() if each[0] in waiting})
        return {f"{state}: {reason}": count for (state, reason), count in reasons.most_common(5) if reason}

    def places(self, only_failed: bool, where: Sequence[str]) -> list[int]:
        """Return the places of the cells that failed, if only those are wanted, and that agree with
        each ``key=value``; of several values of one key, with any.

        Raises:
            UsageError: a text is not ``key=value``, or no cell has such a key.
        """
        wanted: dict[str, set[str]] = {}
        for key, value in map(_pair, where):
            wanted.setdefault(key, set()).add(value)
        failed = set(self.failed()) if only_failed else None
        found, known = [], set()
        for place, cell in enumerate(read_cells(self.directory) if wanted else ()):
            values = {**cell.resources, **cell.config}
            known |= set(values)
            if all(key in values and str(values[key]) in some for key, some in wanted.items()):
                found.append(place)
        if unknown := [key for key in wanted if key not in known]:
            raise UsageError(f"--where {unknown[0]}: no cell has it; {suggestion(unknown[0], known)}")
        every = found if wanted else range(len(self.names))
        return [place for place in every if failed is None or self.names[place] in failed]

    @cached_property
    def differing(self) -> tuple[str, ...]:
        """The resources in which the plan's cells differ."""
        jobs = [job.resources for job in self.plan.cell_jobs()]
        names = dict.fromkeys(name for resources in jobs for name in resources)
        return tuple(name for name in names if len({str(resources.get(name)) for resources in jobs}) > 1)

    def lines(self, only: Container[str] | None = None) -> Iterator[str]:
        """Give each cell, or those named, as a line of JSON: its line of the plan, with its state."""
        # Thousands of cells differ in nothing but their places, so that the rest is written once.
        known: dict[tuple[object, ...], list[str]] = {}
        details = {name: each.progress for name, each in self.details.items() if each.progress}
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


def _pair(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise UsageError(f"--where {text}: expected KEY=VALUE, such as framework=jax")
    return key, value


# In the place of an array index, to find where it is written.
_MARK = 10**18


def _around_index(status: TaskStatus, progress: tuple[int, int] | None) -> list[str]:
    """Write what `hpcrl status --json` says of a cell, cut where the index in its submission's array stands."""
    marked = status._replace(index=_MARK)
    # States, keys and logs hold nothing that JSON would escape.
    parts = f'"slurm": {_quoted(marked.key)}, "log": {_quoted(log_of(marked))}, '.split(str(_MARK))
    parts[0] = f', "state": "{status.state}", "attempt": {status.attempt}, {parts[0]}'
    parts[-1] += f'"progress": {list(progress) if progress else "null"}, "reason": {_json(status.reason)}}}'
    return parts


def _quoted(name: str | None) -> str:
    return f'"{name}"' if name else "null"


def _is_held(status: TaskStatus) -> bool:
    """Tell whether somebody must do something: release a job, or run `hpcrl submit` to settle an old submission."""
    made = status.submission
    if status.state == UNCONFIRMED:
        return made is not None and made.state == "intent" and time.time() - made.at > SBATCH_SECONDS + 60
    return status.slurm is not None and status.state in WAITING and is_stuck(status.slurm.reason)


@cache
def _json(text: str | None) -> str:
    return json.dumps(text, ensure_ascii=False)


def is_failure(state: str) -> bool:
    return state not in LIVE and state not in UNSETTLED and state not in (COMPLETED, NEVER)


def _check_lost(directory: Path) -> None:
    """Make sure that a ledger that is not there was never there.

    Raises:
        DamagedLedger: something was submitted.
    """
    damaged: list[Path] = []
    if any(read_submissions(directory, damaged)) or damaged:
        raise DamagedLedger(f"{directory / FILE}: is missing")


def surveyed(directory: Path, plan: Plan, slurm: Slurm) -> Survey:
    """Look at a plan, also at one of which nothing was submitted: its cells may have been run by hand.

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
    """Look at a plan as a whole, and into the records and logs of running and failed cells."""
    plan = read_plan(directory)
    known = surveyed(directory, plan, slurm)
    stages = {
        job.stage: _with_last_line(directory, job, known.units[job.name])
        for job in plan.jobs
        if job.stage != "cells" and job.name in known.units
    }
    return PlanStatus(directory, plan, known, stages, _details(directory, plan, known))


def _details(directory: Path, plan: Plan, known: Survey) -> dict[str, _Detail]:
    states = {state for state in {each.state for each in known.units.values()} if state in RUNNING or is_failure(state)}
    telling = (each for each in known.units.items() if each[1].state in states and each[0] not in known.ids)
    chosen = dict(islice(telling, DETAILS)) if states else {}
    details = _from_records(directory, chosen) if chosen else {}
    scripts = {job.name: job.script for job in plan.jobs}
    for name, status in chosen.items():
        detail = details.get(name, _Detail(None, None))
        if not is_failure(status.state):
            details[name] = _Detail(detail.progress, None)  # of a requeued job, the record may tell how it ended before
        else:
            job, per_task = (made.job, made.cells_per_task) if (made := status.submission) else ("", 1)
            log = log_of(status)
            words = own_last_line(directory / log, name, scripts.get(job, "its script"), per_task > 1) if log else None
            reason = detail.reason
            if reason is None and status.state not in _NOT_ITS_FAULT:
                reason = words
                progress, attempt = known.progress, status.attempt
                if words is None and status.state == FAILED and progress.outcome(name, attempt) is None:
                    reason = without_a_word(directory, status, log, progress.has_begun(name, attempt))
            elif reason and words and words not in reason and " ended with exit code " in reason:
                reason = f"{reason}: {words}"  # a command: its own last words
            details[name] = _Detail(detail.progress, reason)
    return details


def _with_last_line(directory: Path, job: Job, status: TaskStatus) -> TaskStatus:
    """Give a stage that runs or failed the last line of its log: what it is at, or why it failed."""
    log = log_of(status)
    if log and status.reason is None and (is_failure(status.state) or status.state in RUNNING):
        return status._replace(reason=own_last_line(directory / log, None, job.script))
    return status


def _from_records(directory: Path, cells: Mapping[str, TaskStatus]) -> dict[str, _Detail]:
    """Read progress and reason from the newest record of some cells' newest attempts."""
    newest: dict[str, tuple[float, str]] = {}
    try:
        entries = list(os.scandir(directory / RECORDS)) if cells else []
    except OSError:
        entries = []
    for entry in entries:
        cell, _, rest = entry.name.partition(".")
        if cell in cells and entry.name.endswith(".r0.rec") and _is_of(cells[cell], rest.partition(".")[0]):
            with suppress(OSError):
                newest[cell] = max(newest.get(cell, (0.0, "")), (entry.stat().st_mtime, entry.path))
    if not newest:
        return {}
    from hpcrl.formats.record import RecordError, read_frames  # imports NumPy

    details = {}
    for cell, (_, path) in newest.items():
        progress, reason = None, None
        try:
            for frame in read_frames(Path(path), frozenset({"progress", "footer"})):
                if frame.kind == "progress":
                    step, total, _ = frame.payload["table"][-1]
                    progress = (int(step), int(total))
                else:
                    told = frame.payload.get("reason")
                    reason = told if isinstance(told, str) else None
        except (RecordError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError, MemoryError):
            continue
        details[cell] = _Detail(progress, reason)
    return details


def _is_of(status: TaskStatus, name: str) -> bool:
    """Tell whether a record's attempt, with its restarts, is the newest: an older one failed for reasons of its own."""
    if status.submission is None:
        return True
    wanted = attempt_name(status.submission, status.index, status.slurm.job_id if status.slurm else None)
    if status.submission.executor == "slurm" and not status.submission.array:
        wanted = wanted.rpartition("_")[0]
    return wanted.startswith("?") or name == wanted or name.startswith(f"{wanted}-")


@dataclass(frozen=True)
class Cancelled:
    """How many tasks were live and are cancelled, how many completed before the signal reached them, and how many
    were removed that Slurm held although their cells had completed.
    """

    tasks: int
    completed: int
    held: int = 0


def cancel(directory: Path, slurm: Slurm, cells: Sequence[str], say: Say = lambda text: None) -> Cancelled:
    """Cancel the cells named, or everything that still waits or runs.

    Every job of the plan that Slurm has is cancelled, also one of which sbatch never told.

    Args:
        cells: beginnings of ids; empty: all. Cells of older generations count too.

    Raises:
        HpcrlError: Slurm does not answer.
    """
    from hpcrl.formats.lease import held_lease
    from hpcrl.submit.local import end_orphan
    from hpcrl.submit.settling import refuse_copy, settle

    plan = read_plan(directory)
    if not (directory / FILE).exists():
        _check_lost(directory)
    chosen = set()
    for cell in cells:
        found, job, _ = find_cell(directory, plan, cell, older=True)
        chosen.add(found.id)
        if job not in plan.jobs:
            say(f"cell {found.id} belongs to an older generation of the plan: the study has it no longer")
    with held_lease(directory, "cancel", say):
        ledger = Ledger(directory)
        try:
            refuse_copy(directory, ledger, "cancel there")
            settle(directory, ledger, slurm, say)
            known = survey(directory, plan, ledger, slurm)
            if not known.answered and any(each.state == UNKNOWN for each in known.units.values()):
                raise HpcrlError(
                    f"{'; '.join(known.notes)}: nothing was cancelled; run `hpcrl cancel` again when Slurm answers"
                )
            live = {
                name: each for name, each in known.units.items() if each.state in LIVE and (not cells or name in chosen)
            }
            by_token: dict[str, list[int]] = {}
            keys: list[str] = []
            queues = read_queues(directory)
            for name, each in live.items():
                if each.submission is None:  # it was lost with the ledger
                    end_orphan(read_holder(directory, name, each.attempt))
                    continue
                by_token.setdefault(each.submission.token, []).append(each.index)
                if each.submission.executor == "local":
                    ledger.local_cancel(each.submission.token, each.index)
                    if not queues.get(each.submission.token):
                        end_orphan(read_holder(directory, name, each.attempt))
                elif each.key:
                    keys.append(each.key)
            for token, indices in by_token.items():
                ledger.cancel(token, indices)
            # Whole arrays in one word each: thousands of keys do not fit on a command line.
            slurm.cancel(keys if cells else _whole(ledger, slurm, keys))
            completed = _completed(directory, plan, ledger, slurm, live)
            return Cancelled(len(live) - completed, completed, 0 if cells else len(known.held))
        finally:
            ledger.close()


def _completed(directory: Path, plan: Plan, ledger: Ledger, slurm: Slurm, live: Collection[str]) -> int:
    """Count what completed all the same, as soon as all of it has ended or after a few looks."""
    if not live:
        return 0
    for pause in _LOOKS:
        time.sleep(pause)
        units = survey(directory, plan, ledger, slurm).units
        ended = [units[name].state for name in live if units[name].state not in LIVE]
        if len(ended) == len(live):
            break
    return ended.count(COMPLETED)


def _whole(ledger: Ledger, slurm: Slurm, keys: Sequence[str]) -> list[str]:
    """Return the ids of every job of the plan that Slurm still has live, known to be wanted or not."""
    submissions = [each for each in ledger.submissions() if each.executor == "slurm" and each.state != "refused"]
    view = slurm.look([each.name for each in submissions], min((each.at for each in submissions), default=0.0))
    ids = {key.partition("_")[0] for key in keys}
    for found in view.jobs.values():
        ids |= {job_id for job_id, tasks in found.items() if any(each.state in LIVE for each in tasks.values())}
    return sorted(ids)
