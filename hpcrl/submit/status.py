"""How far a plan is, for people and programs; and the log of a cell, and cancelling."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.attempts import read_holder
from hpcrl.formats.lease import Say, held_lease
from hpcrl.formats.ledger import FILE, DamagedLedger, Ledger
from hpcrl.formats.memory import without_gc
from hpcrl.formats.plan import RECORDS, Cell, Job, Plan, cells_at, find_cell, read_cells, read_plan
from hpcrl.formats.queues import read_queues
from hpcrl.formats.submission import read_submissions
from hpcrl.slurm.client import RUNNING, SBATCH_SECONDS, WAITING, Slurm
from hpcrl.slurm.reasons import is_stuck
from hpcrl.submit.failures import counted, own_last_line, without_a_word
from hpcrl.submit.survey import (
    CANCELLED,
    COMPLETED,
    FAILED,
    LIVE,
    LOST,
    NEVER,
    UNCONFIRMED,
    UNKNOWN,
    UNSETTLED,
    Survey,
    TaskStatus,
    attempt_name,
    log_of,
    survey,
)

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
    def units(self) -> list[tuple[str, Job, int, TaskStatus]]:
        """(cell id, job, task, status) of every cell in the plan's order."""
        found, details = self.survey.units, self.details
        return [
            (name, job, task, self._detailed(name, status) if name in details else status)
            for job in self.plan.cell_jobs()
            for task, name in enumerate(self.survey.ids[job.name])
            for status in (found.get(name, _NEVER),)
        ]

    def _detailed(self, name: str, status: TaskStatus) -> TaskStatus:
        detail = self.details.get(name)
        return replace(status, reason=status.reason or detail.reason) if detail and detail.reason else status

    def counts(self) -> dict[str, int]:
        return dict(self._counts.most_common())

    @cached_property
    def _counts(self) -> Counter[str]:
        return Counter([status.state for _, _, _, status in self.units])

    @cached_property
    def failures(self) -> frozenset[str]:
        """The states among those of the cells that say that one failed."""
        return frozenset(state for state in self._counts if is_failure(state))

    def pick(self, wanted: Sequence[int]) -> list[CellStatus]:
        """Return the cells at some places of the plan."""
        cells = cells_at(self.directory, self.plan, set(wanted))
        return [self._cell(cells[place], *self.units[place][1:]) for place in wanted]

    def _cell(self, cell: Cell, job: Job, task: int, status: TaskStatus) -> CellStatus:
        detail = self.details.get(cell.id)
        return CellStatus(cell, job.name, task, status, detail.progress if detail else None)

    @cached_property
    def cells(self) -> list[CellStatus]:
        return [self._cell(cell, *row[1:]) for cell, row in zip(read_cells(self.directory), self.units, strict=True)]

    def failed(self) -> list[str]:
        return [name for name, _, _, status in self.units if status.state in self.failures] if self.failures else []

    def live(self) -> bool:
        """Tell whether anything still waits or runs, or may do so."""
        states = {*self._counts, *(each.state for each in self.stages.values())}
        return bool(states & (LIVE | UNSETTLED))

    def stuck(self) -> bool:
        """Tell whether all that is live waits for something that does not happen by itself."""
        live = [
            each
            for each in [*(status for *_, status in self.units), *self.stages.values()]
            if each.state in LIVE or each.state in UNSETTLED
        ]
        held = [each for each in live if _is_held(each)]
        waits = [each for each in live if each.slurm and each.slurm.reason == "Dependency"]
        return bool(held) and len(held) + len(waits) == len(live)

    def causes(self) -> dict[str, int]:
        """Count failed stages and cells by cause, the most frequent first."""
        failed: list[tuple[str | None, TaskStatus]] = []
        failed += [(None, each) for each in self.stages.values() if is_failure(each.state)]
        if self.failures:
            failed += [(name, status) for name, _, _, status in self.units if status.state in self.failures]
        return counted(failed)

    def unsettled(self) -> dict[str, int]:
        """Count by reason what waits, or of which nobody knows."""
        waiting = UNSETTLED | {"PENDING"}
        if not waiting & set(self._counts):
            return {}
        reasons = Counter([(status.state, status.reason) for _, _, _, status in self.units if status.state in waiting])
        return {f"{state}: {reason}": count for (state, reason), count in reasons.most_common(5) if reason}

    def lines(self) -> Iterator[str]:
        """Give each cell as a line of JSON: its line of the plan, with its state."""
        path = self.directory / self.plan.cells_file
        with path.open(encoding="utf-8") as file:
            for line, (name, job, task, status) in zip(file, self.units, strict=True):
                detail = self.details.get(name)
                log, key = log_of(status), status.key
                progress = list(detail.progress) if detail and detail.progress else "null"
                # Names of jobs, states, keys and logs hold nothing that JSON would escape.
                yield (
                    f'{line.rstrip()[:-1]}, "job": "{job.name}", "task": {task}, "state": "{status.state}", '
                    f'"attempt": {status.attempt}, "slurm": {_quoted(key)}, "log": {_quoted(log)}, '
                    f'"progress": {progress}, "reason": {_json(status.reason)}}}'
                )


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


def _surveyed(directory: Path, plan: Plan, slurm: Slurm) -> Survey:
    """Look at a plan, also at one of which nothing was submitted: its cells may have been run by hand.

    Raises:
        DamagedLedger: the ledger was lost, and something was submitted.
    """
    if not (directory / FILE).exists():
        damaged: list[Path] = []
        if any(read_submissions(directory, damaged)) or damaged:
            raise DamagedLedger(
                f"{directory / FILE}: is missing: `hpcrl submit` rebuilds it from submissions/ and Slurm"
            )
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
    known = _surveyed(directory, plan, slurm)
    stages = {
        job.stage: _with_last_line(directory, job, known.units[job.name])
        for job in plan.jobs
        if job.stage != "cells" and job.name in known.units
    }
    return PlanStatus(directory, plan, known, stages, _details(directory, plan, known))


def _details(directory: Path, plan: Plan, known: Survey) -> dict[str, _Detail]:
    telling = {
        name: each
        for name, each in known.units.items()
        if name not in known.ids and (each.state in RUNNING or is_failure(each.state))
    }
    chosen = dict(list(telling.items())[:DETAILS])
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
                attempt = (name, status.attempt)
                if words is None and status.state == FAILED and attempt not in known.progress.ended:
                    reason = without_a_word(directory, status, log, attempt in known.progress.taken)
            elif reason and words and words not in reason and " ended with exit code " in reason:
                reason = f"{reason}: {words}"  # a command: its own last words
            details[name] = _Detail(detail.progress, reason)
    return details


def _with_last_line(directory: Path, job: Job, status: TaskStatus) -> TaskStatus:
    """Give a stage that runs or failed the last line of its log: what it is at, or why it failed."""
    log = log_of(status)
    if log and status.reason is None and (is_failure(status.state) or status.state in RUNNING):
        return replace(status, reason=own_last_line(directory / log, None, job.script))
    return status


def _from_records(directory: Path, cells: Mapping[str, TaskStatus]) -> dict[str, _Detail]:
    """Read progress and reason from the newest record of some cells' newest attempts."""
    from hpcrl.formats.record import RecordError, read_frames

    newest: dict[str, tuple[float, str]] = {}
    try:
        entries = list(os.scandir(directory / RECORDS)) if cells else []
    except OSError:
        entries = []
    for entry in entries:
        cell, _, rest = entry.name.partition(".")
        if cell in cells and entry.name.endswith(".r0.rec") and _is_of(cells[cell], rest.partition(".")[0]):
            newest[cell] = max(newest.get(cell, (0.0, "")), (entry.stat().st_mtime, entry.path))
    details = {}
    for cell, (_, path) in newest.items():
        progress, reason = None, None
        try:
            for frame in read_frames(Path(path), frozenset({"progress", "footer"})):
                if frame.kind == "progress":
                    step, total, _ = frame.payload["table"][-1]
                    progress = (int(step), int(total))
                else:
                    reason = frame.payload.get("reason")
        except (RecordError, KeyError, TypeError, ValueError, IndexError, OverflowError):
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


def find_log(directory: Path, cell: str, slurm: Slurm) -> Path:
    """Return the log of a cell's newest attempt.

    Raises:
        UsageError: there is no such cell, or it has not run yet.
    """
    plan = read_plan(directory)
    found, _, _ = find_cell(directory, plan, cell, older=True)
    status = _surveyed(directory, plan, slurm).units.get(found.id)
    log = log_of(status) if status else None
    if log is None or not (directory / log).is_file():
        raise UsageError(f"cell {found.id}: has no log yet: {status.state if status else NEVER}")
    return directory / log


@dataclass(frozen=True)
class Cancelled:
    """How many tasks were live and are cancelled, and how many completed before the signal reached them."""

    tasks: int
    completed: int


def cancel(directory: Path, slurm: Slurm, cells: Sequence[str], say: Say = lambda text: None) -> Cancelled:
    """Cancel the cells named, or everything that still waits or runs.

    Every job of the plan that Slurm has is cancelled, also one of which sbatch never told.

    Args:
        cells: beginnings of ids; empty: all. Cells of older generations count too.

    Raises:
        HpcrlError: Slurm does not answer.
    """
    from hpcrl.submit.local import end_orphan
    from hpcrl.submit.settling import settle

    plan = read_plan(directory)
    chosen = set()
    for cell in cells:
        found, job, _ = find_cell(directory, plan, cell, older=True)
        chosen.add(found.id)
        if job not in plan.jobs:
            say(f"cell {found.id} belongs to an older generation of the plan: the study has it no longer")
    with held_lease(directory, "cancel", say):
        ledger = Ledger(directory)
        try:
            settle(directory, ledger, slurm, say)
            known = survey(directory, plan, ledger, slurm)
            if not known.answered and any(each.state == UNKNOWN for each in known.units.values()):
                raise HpcrlError(
                    f"{'; '.join(known.notes)}: nothing was cancelled; run `hpcrl cancel` again when Slurm answers"
                )
            live = {
                name: each
                for name, each in known.units.items()
                if each.state in LIVE and (not cells or name in chosen) and each.submission
            }
            by_token: dict[str, list[int]] = {}
            keys: list[str] = []
            queues = read_queues(directory)
            for name, each in live.items():
                assert each.submission is not None
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
            return Cancelled(len(live) - completed, completed)
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
