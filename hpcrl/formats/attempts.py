"""The fence: which attempts of which cells have begun, and how they ended, as names of small files.

    attempts/<cell>.<attempt>-<restart>             taken: created exclusively by the start that runs it
    attempts/<cell>.<attempt>-<restart>.<outcome>   ended: created after the record's footer was written
    attempts/<cell>.<attempt>-<restart>.completed-<rank>   one rank of several has completed
    attempts/<cell>.<attempt>-<restart>.again-...   a second start that was turned away
    attempts/<cell>.<attempt>-<restart>.step-...    how far the steps of several ranks are (prepare, check)
    attempts/<cell>.<attempt>-<restart>.unmeasured   its telemetry did not run

`attempt` is the number that `hpcrl submit` granted, or the attempt's own name where the cell was started by hand.
However often the scheduler starts an attempt, one start takes it: creating a file exclusively is atomic on NFS and
Lustre too. One listing of the directory shows the progress of a plan.
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
from hpcrl.formats.outcomes import place_of

ATTEMPTS = "attempts"
COMPLETED = "completed"
_UNMEASURED = "unmeasured"
_STEP = "step-"
_LONGEST = 10_000
# A start prints this line when it has taken its attempt. Earlier lines of the log are the script's, not the cell's.
BEGINS = re.compile(r"hpcrl: cell (\S+) begins \(attempt \S+\)")
CHECK_BEGINS = "hpcrl: the check begins"  # the line in the log between a command and the check of its results


@dataclass(frozen=True)
class Start:
    """One start of one attempt of a cell.

    Args:
        cell: the cell's id.
        attempt: the granted number, or the attempt's own name.
        restart: how often the scheduler has requeued the job.
        key: the job, as ``JOBID_INDEX``.
        mark: equal for all ranks of one start, and different for two starts of one job.
        submission: the token of the submission that granted the attempt; None for a start by hand.
    """

    cell: str
    attempt: str
    restart: int
    key: str
    mark: str
    submission: str | None = None

    @property
    def name(self) -> str:
        return f"{self.cell}.{self.attempt}-{self.restart}"


def take_attempt(directory: Path, start: Start, facts: dict[str, Any]) -> str | None:
    """Take an attempt before any work. Return None if this start has it, else a sentence that names the start that has it.

    Args:
        facts: further content of the file: node, token, time.

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
    """Say why a requeued job may not continue: its attempt completed, or another job has it."""
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
        # A FIFO or a link of this name must not block the cell or lead it to another file.
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
    """Return what the first start of a granted attempt wrote; empty if it has not begun."""
    try:
        return _read(directory / ATTEMPTS / f"{cell}.{attempt}-0")
    except OSError:
        return {}


def time_of_start(directory: Path, cell: str, attempt: int) -> float:
    """Return when a granted attempt was taken first, by the clock of the file system.

    Raises:
        OSError: it has not begun.
    """
    return (directory / ATTEMPTS / f"{cell}.{attempt}-0").lstat().st_mtime


def begins(start: Start) -> str:
    """Return the line that :data:`BEGINS` reads."""
    restart = f"-{start.restart}" if start.restart else ""
    return f"hpcrl: cell {start.cell} begins (attempt {start.attempt}{restart})"


def note_turned_away(directory: Path, start: Start) -> None:
    """Create the file that records a second start."""
    mark = re.sub(r"[^A-Za-z0-9_-]", "_", f"{start.key}-{start.mark}")
    _touch(directory / ATTEMPTS / f"{start.name}.again-{mark}")


def note_unmeasured(directory: Path, start: Start) -> None:
    """Create the file that records that an attempt's telemetry did not run."""
    _touch(directory / ATTEMPTS / f"{start.name}.{_UNMEASURED}")


def end_attempt(directory: Path, start: Start, outcome: str, rank: int = 0, ranks: int = 1) -> None:
    """Record how a rank of an attempt ended. Call it when the record's footer is on disk.

    An attempt has completed when all its ranks have: the last one records it. A rank that did not complete records that itself.
    """
    path = directory / ATTEMPTS / f"{start.name}.{outcome}"
    if outcome != COMPLETED or ranks == 1:
        _touch(path)
        return
    marks = [path.with_name(f"{path.name}-{number}") for number in range(ranks)]
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
    """The content of the directory of attempts.

    Args:
        begun: number of an attempt -> the cells that began it.
        ended: number of an attempt -> cell -> the outcome of its last restart that ended, the worst of its ranks.
        byhand: cell -> outcome of a start by hand; completed wins.
        turned_away: number of second starts.
        unmeasured: number of starts whose telemetry did not run.
    """

    begun: dict[int, set[str]] = field(default_factory=dict)
    ended: dict[int, dict[str, str]] = field(default_factory=dict)
    byhand: dict[str, str] = field(default_factory=dict)
    turned_away: int = 0
    unmeasured: int = 0

    def has_begun(self, cell: str, attempt: int) -> bool:
        return cell in self.begun.get(attempt, ()) or cell in self.ended.get(attempt, ())

    def outcome(self, cell: str, attempt: int) -> str | None:
        """Return how an attempt ended, None if it has not."""
        return self.ended.get(attempt, {}).get(cell)

    def completed(self) -> dict[int, set[str]]:
        """Return the cells that completed, by the number of the attempt."""
        return {
            attempt: {cell for cell, outcome in cells.items() if outcome == COMPLETED}
            for attempt, cells in self.ended.items()
        }


def read_attempts(directory: Path) -> Progress:
    """List the attempts that have begun and ended. It lists one directory once, whatever the size of the plan."""
    try:
        names = os.listdir(directory / ATTEMPTS)  # noqa: PTH208, a name is all that is wanted of 200,000 files
    except FileNotFoundError:
        names = []
    except OSError as error:
        raise HpcrlError(f"{directory / ATTEMPTS}: cannot be read: {error.strerror}") from None
    # Thousands of names have the same ending ("1-0.completed"), so each ending is parsed once.
    cells_by_ending: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        cell, _, ending = name.partition(".")
        if cell:
            cells_by_ending[ending].append(cell)
    begun: dict[int, set[str]] = {}
    ends: list[tuple[int, int, str, int, list[str]]] = []
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
                ends.append((int(restart), -place_of(outcome), outcome, int(attempt), cells))
            else:
                begun.setdefault(int(attempt), set()).update(cells)
        elif outcome:
            byhand |= {cell: outcome for cell in cells if byhand.get(cell) != COMPLETED}
    ended: defaultdict[int, dict[str, str]] = defaultdict(dict)
    # The last restart counts, and the worst of its ranks: a rank that fails takes the others along, which say that a signal ended them.
    for _, _, outcome, number, cells in sorted(ends):
        ended[number].update(dict.fromkeys(cells, outcome))
    return Progress(begun, dict(ended), byhand, turned_away, unmeasured)
