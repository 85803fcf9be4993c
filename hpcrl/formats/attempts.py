"""The fence: which attempts of which cells have begun, and how they ended, as names of small files.

    attempts/<cell>.<attempt>-<restart>             taken: created exclusively by the start that runs it
    attempts/<cell>.<attempt>-<restart>.<outcome>   ended: created after the record's footer was written
    attempts/<cell>.<attempt>-<restart>.completed-<rank>   one rank of several has completed
    attempts/<cell>.<attempt>-<restart>.again-...   a second start that was turned away
    attempts/<cell>.<attempt>-<restart>.step-...    how far the steps of several ranks are (prepare, check)
    attempts/<cell>.<attempt>-<restart>.unmeasured   its telemetry did not run

`attempt` is the number that `hpcrl submit` granted, or the attempt's own name where the cell was started by hand.
However often the scheduler starts an attempt, one start takes it: creating a file exclusively is atomic on NFS and
Lustre too. One listing of the directory tells how far a plan is.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcrl.errors import HpcrlError
from hpcrl.formats.files import create_exclusively, open_of_stranger

ATTEMPTS = "attempts"
COMPLETED = "completed"
_UNMEASURED = "unmeasured"
_STEP = "step-"
_LONGEST = 10_000
# What a start prints when it has taken its attempt: what stands before it in the log is the script's, not the cell's.
BEGINS = re.compile(r"hpcrl: cell (\S+) begins \(attempt \S+\)")


@dataclass(frozen=True)
class Start:
    """One start of one attempt of a cell.

    Args:
        cell: the cell's id.
        attempt: the granted number, or the attempt's own name.
        restart: how often the scheduler has requeued the job.
        key: the job, as ``JOBID_INDEX``.
        mark: what the ranks of one start have in common, and two starts of one job have not.
    """

    cell: str
    attempt: str
    restart: int
    key: str
    mark: str

    @property
    def name(self) -> str:
        return f"{self.cell}.{self.attempt}-{self.restart}"


def take_attempt(directory: Path, start: Start, facts: dict[str, Any]) -> str | None:
    """Take an attempt before any work; return None where this start has it, else the sentence that says who has.

    Args:
        facts: what else the file says: node, token, time.

    Raises:
        HpcrlError: the plan directory cannot be written.
    """
    folder = directory / ATTEMPTS
    content = json.dumps({"job": start.key, "start": start.mark, **facts})
    try:
        folder.mkdir(exist_ok=True)
        if refusal := _earlier_start(folder, start):
            return refusal
        if create_exclusively(folder / start.name, content):
            return None
        holder = _read(folder / start.name)
    except OSError as error:
        raise HpcrlError(f"{folder}: the attempt cannot be taken: {error.strerror}: nothing was run") from None
    if holder.get("start") == start.mark:
        return None  # another rank of this start was first
    return f"attempt {start.attempt} of cell {start.cell} runs or ran as {_who(holder)}: this start does nothing"


def _earlier_start(folder: Path, start: Start) -> str | None:
    """Say why a requeued job may not go on: its attempt completed, or another job has it."""
    for restart in range(start.restart - 1, -1, -1):
        name = f"{start.cell}.{start.attempt}-{restart}"
        if (folder / f"{name}.{COMPLETED}").exists():
            return f"attempt {start.attempt} of cell {start.cell} has completed: this start does nothing"
        if holder := _read(folder / name):
            if holder.get("job") == start.key:
                return None
            return f"attempt {start.attempt} of cell {start.cell} was taken by {_who(holder)}: this start does nothing"
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        # Whatever stands there must not make a cell wait or follow it elsewhere.
        with open_of_stranger(path) as file:
            content = json.loads(file.read(_LONGEST))
    except FileNotFoundError:
        return {}
    except (ValueError, OSError, RecursionError):
        return {"job": "another job"}
    return content if isinstance(content, dict) else {"job": "another job"}


def _who(holder: dict[str, Any]) -> str:
    return f"job {holder.get('job', '?')} on {holder.get('node', '?')}"


def read_holder(directory: Path, cell: str, attempt: int) -> dict[str, Any]:
    """Return what the first start of a granted attempt wrote; empty where it has not begun."""
    try:
        return _read(directory / ATTEMPTS / f"{cell}.{attempt}-0")
    except OSError:
        return {}


def begins(start: Start) -> str:
    """Return the line that :data:`BEGINS` reads."""
    restart = f"-{start.restart}" if start.restart else ""
    return f"hpcrl: cell {start.cell} begins (attempt {start.attempt}{restart})"


def note_turned_away(directory: Path, start: Start) -> None:
    """Leave a file that tells of a second start."""
    mark = re.sub(r"[^A-Za-z0-9_-]", "_", f"{start.key}-{start.mark}")
    _touch(directory / ATTEMPTS / f"{start.name}.again-{mark}")


def note_unmeasured(directory: Path, start: Start) -> None:
    """Leave a file that tells that an attempt's telemetry did not run."""
    _touch(directory / ATTEMPTS / f"{start.name}.{_UNMEASURED}")


def end_attempt(directory: Path, start: Start, outcome: str, rank: int = 0, ranks: int = 1) -> None:
    """Say how a rank of an attempt ended; call it once the record's footer is on disk.

    An attempt has completed when all of its ranks have: the last one says so. A rank that did not complete says so itself.
    """
    path = directory / ATTEMPTS / f"{start.name}.{outcome}"
    if outcome != COMPLETED or ranks == 1:
        _touch(path)
        return
    marks = [path.with_name(f"{path.name}-{each}") for each in range(ranks)]
    _touch(marks[rank])
    if all(mark.exists() for mark in marks):
        _touch(path)


def note_step(directory: Path, start: Start, mark: str) -> None:
    """Tell the other ranks of a start how far its steps are."""
    _touch(directory / ATTEMPTS / f"{start.name}.{_STEP}{mark}")


def has_step(directory: Path, start: Start, mark: str) -> bool:
    return (directory / ATTEMPTS / f"{start.name}.{_STEP}{mark}").exists()


def _touch(path: Path) -> None:
    try:
        path.touch()
    except OSError as error:
        raise HpcrlError(f"{path}: cannot be written: {error.strerror}") from None


@dataclass(frozen=True)
class Progress:
    """What the directory of attempts says.

    Args:
        begun: number of an attempt -> the cells that began it.
        ended: number of an attempt -> cell -> the outcome of its last restart that ended, the worst of its ranks.
        byhand: cell -> outcome of a start by hand; completed wins.
        turned_away: how many second starts there were.
        unmeasured: of how many starts the telemetry did not run.
    """

    begun: dict[int, set[str]] = field(default_factory=dict)
    ended: dict[int, dict[str, str]] = field(default_factory=dict)
    byhand: dict[str, str] = field(default_factory=dict)
    turned_away: int = 0
    unmeasured: int = 0

    def has_begun(self, cell: str, attempt: int) -> bool:
        return cell in self.begun.get(attempt, ()) or cell in self.ended.get(attempt, ())

    def outcome(self, cell: str, attempt: int) -> str | None:
        """Return how an attempt ended, None where it has not."""
        return self.ended.get(attempt, {}).get(cell)

    def completed(self) -> dict[int, set[str]]:
        """Return, by the number of the attempt, the cells of which it completed."""
        return {
            attempt: {cell for cell, outcome in cells.items() if outcome == COMPLETED}
            for attempt, cells in self.ended.items()
        }


def read_attempts(directory: Path) -> Progress:
    """List what has begun and ended: one look at one directory, whatever the size of the plan."""
    try:
        names = os.listdir(directory / ATTEMPTS)  # noqa: PTH208, a name is all that is wanted of 200,000 files
    except FileNotFoundError:
        names = []
    except OSError as error:
        raise HpcrlError(f"{directory / ATTEMPTS}: cannot be read: {error.strerror}") from None
    # Thousands of names end alike ("1-0.completed"), so that each ending is read once.
    cells_by_ending: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        cell, _, ending = name.partition(".")
        if cell:
            cells_by_ending[ending].append(cell)
    begun: dict[int, set[str]] = {}
    ends: list[tuple[int, bool, str, int, list[str]]] = []
    byhand: dict[str, str] = {}
    turned_away = unmeasured = 0
    for ending, cells in cells_by_ending.items():
        start, _, outcome = ending.partition(".")
        attempt, _, restart = start.rpartition("-")
        if not attempt or not restart.isdecimal():
            continue
        if outcome.startswith("again-"):
            turned_away += len(cells)
        elif outcome == _UNMEASURED:
            unmeasured += len(cells)
        elif outcome.startswith((f"{COMPLETED}-", _STEP)):
            continue  # of one rank of several
        elif attempt.isdecimal():
            if outcome:
                ends.append((int(restart), outcome != COMPLETED, outcome, int(attempt), cells))
            else:
                begun.setdefault(int(attempt), set()).update(cells)
        elif outcome:
            byhand |= {cell: outcome for cell in cells if byhand.get(cell) != COMPLETED}
    ended: defaultdict[int, dict[str, str]] = defaultdict(dict)
    # The last restart counts; of its ranks, one that failed outweighs one that completed.
    for _, _, outcome, number, cells in sorted(ends):
        ended[number].update(dict.fromkeys(cells, outcome))
    return Progress(begun, dict(ended), byhand, turned_away, unmeasured)
