"""Why cells failed and how far running ones are, from their records and logs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpcrl.formats.outcomes import RankEnd, cause
from hpcrl.formats.plan import RECORDS, Job, Plan
from hpcrl.schedulers.states import CANCELLED, COMPLETED, FAILED, LIVE, LOST, NEVER, UNSETTLED, TaskStatus
from hpcrl.slurm.client import RUNNING
from hpcrl.submit.failures import own_last_line, without_a_word

if TYPE_CHECKING:
    from hpcrl.submit.survey import Survey

# Maximum number of failed and running cells whose records and logs are read; for more, only states are shown.
DETAILS = 500
# Causes from outside the cell, which its log does not show.
_NOT_ITS_FAULT = frozenset({CANCELLED, LOST, "NODE_FAIL", "PREEMPTED"})


@dataclass(frozen=True)
class Detail:
    """What the records and the log of a cell say; `progress` is (steps, of how many) while it runs."""

    progress: tuple[int, int] | None
    reason: str | None


class _Record(NamedTuple):
    """A file of a rank, with the time of its last change."""

    changed: float
    attempt: str
    rank: int
    path: str


def is_failure(state: str) -> bool:
    return state not in LIVE and state not in UNSETTLED and state not in (COMPLETED, NEVER)


def details_of(directory: Path, plan: Plan, known: Survey) -> dict[str, Detail]:
    """Return what is known of running and failed cells."""
    states = {state for state in {task.state for task in known.units.values()} if state in RUNNING or is_failure(state)}
    telling = (unit for unit in known.units.items() if unit[1].state in states and unit[0] not in known.ids)
    chosen = dict(islice(telling, DETAILS)) if states else {}
    details = _from_records(directory, chosen) if chosen else {}
    scripts = {job.name: job.script for job in plan.jobs}
    for name, status in chosen.items():
        detail = details.get(name, Detail(None, None))
        if not is_failure(status.state):
            details[name] = Detail(detail.progress, None)  # for a requeued job, the record may describe its earlier end
        else:
            job, per_task = (made.job, made.cells_per_task) if (made := status.submission) else ("", 1)
            log = status.log
            words = own_last_line(directory / log, name, scripts.get(job, "its script"), per_task > 1) if log else None
            reason = detail.reason
            if reason is None and status.state not in _NOT_ITS_FAULT:
                reason = words
                progress, attempt = known.progress, status.attempt
                if words is None and status.state == FAILED and progress.outcome(name, attempt) is None:
                    reason = without_a_word(directory, status, log, progress.has_begun(name, attempt))
            elif reason and words and words not in reason and " ended with exit code " in reason:
                reason = f"{reason}: {words}"  # a command: its own last words
            details[name] = Detail(detail.progress, reason)
    return details


def with_last_line(directory: Path, job: Job, status: TaskStatus) -> TaskStatus:
    """Add the last line of its log to a stage that runs or failed."""
    log = status.log
    if log and status.reason is None and (is_failure(status.state) or status.state in RUNNING):
        return status._replace(reason=own_last_line(directory / log, None, job.script))
    return status


def _from_records(directory: Path, cells: Mapping[str, TaskStatus]) -> dict[str, Detail]:
    """Read progress and reason from the records of some cells' newest attempts.

    The first rank knows the progress. Any rank may be the cause of a failure.
    """
    found: dict[str, list[_Record]] = {}
    try:
        entries = list(os.scandir(directory / RECORDS)) if cells else []
    except OSError:
        entries = []
    for entry in entries:
        match entry.name.split("."):
            case [cell, attempt, _, rank, "rec"] if cell in cells and rank[:1] == "r" and rank[1:].isdecimal():
                number = int(rank[1:])
            case _:
                continue
        if _is_of(cells[cell], attempt) and (number == 0 or is_failure(cells[cell].state)):
            with suppress(OSError):
                record = _Record(entry.stat().st_mtime, attempt, number, entry.path)
                found.setdefault(cell, []).append(record)
    details = {}
    for cell, records in found.items():
        newest = max(records).attempt
        if detail := _read(record for record in sorted(records, reverse=True) if record.attempt == newest):
            details[cell] = detail
    return details


def _read(records: Iterable[_Record]) -> Detail | None:
    """Read the records of one attempt; None if none of them can be read."""
    from hpcrl.formats.record import RecordError, read_frames  # imports NumPy

    progress: tuple[int, int] | None = None
    ends: dict[int, RankEnd | None] = {}
    nodes: dict[int, str] = {}
    ahead: dict[str, float] = {}  # only the first rank of a node knows by how much the node's clock is ahead
    for record in records:
        if record.rank in ends:  # an older one of the same rank
            continue
        end, steps, started = None, None, 0.0
        try:
            for frame in read_frames(Path(record.path), frozenset({"header", "progress", "footer"})):
                if frame.kind == "header":
                    started = float(frame.payload["started"])
                    node = nodes[record.rank] = str(frame.payload["node"])
                    if offset := frame.payload.get("clock_offset"):
                        ahead[node] = float(offset)
                elif frame.kind == "progress":
                    step, total, _ = frame.payload["table"][-1]
                    steps = (int(step), int(total))
                else:
                    told, facts = frame.payload.get("reason"), frame.payload
                    reason = told if isinstance(told, str) else None
                    time = started + float(facts.get("wall_time", 0.0))
                    end = RankEnd(record.rank, str(facts["outcome"]), reason, bool(facts.get("killed_by")), time)
        except (RecordError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError, MemoryError):
            continue
        ends[record.rank] = end
        progress = steps if record.rank == 0 else progress
    if not ends:
        return None
    known = [end._replace(time=end.time - ahead.get(nodes.get(end.rank, ""), 0.0)) for end in ends.values() if end]
    decided = cause(known, len(ends)) or ends.get(0)
    return Detail(progress, decided.reason if decided else None)


def _is_of(status: TaskStatus, name: str) -> bool:
    """Tell whether a record's attempt, with its restarts, is the newest: an older one failed for other reasons."""
    if status.submission is None:
        return True
    wanted = status.submission.attempt(status.index, status.slurm.job_id if status.slurm else None)
    return wanted.startswith("?") or name == wanted or name.startswith(f"{wanted}-")
