"""The fence: which attempts of which cells have begun, and how they ended, as names of small files.

    attempts/<cell>.<attempt>-<restart>             taken: created exclusively by the start that runs it
    attempts/<cell>.<attempt>-<restart>.<outcome>   ended: created after the record's footer was written
    attempts/<cell>.<attempt>-<restart>.again-...   a second start that was turned away

`attempt` is the number that `hpcrl submit` granted, or the attempt's own name where the cell was started by hand.
However often the scheduler starts an attempt, one start takes it: creating a file exclusively is atomic on NFS and
Lustre too. One listing of the directory tells how far a plan is.
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcrl.errors import HpcrlError
from hpcrl.formats.files import create_exclusively

ATTEMPTS = "attempts"
COMPLETED = "completed"
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
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        with os.fdopen(handle, encoding="utf-8") as file:
            regular = stat.S_ISREG(os.fstat(handle).st_mode)
            content = json.loads(file.read(_LONGEST)) if regular else None
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


def end_attempt(directory: Path, start: Start, outcome: str) -> None:
    """Say how an attempt ended; call it once the record's footer is on disk."""
    _touch(directory / ATTEMPTS / f"{start.name}.{outcome}")


def _touch(path: Path) -> None:
    try:
        path.touch()
    except OSError as error:
        raise HpcrlError(f"{path}: cannot be written: {error.strerror}") from None


@dataclass(frozen=True)
class Progress:
    """What the directory of attempts says.

    Args:
        taken: (cell, attempt) of every granted attempt that has begun.
        ended: (cell, attempt) -> the outcome of its last restart that ended, the worst of its ranks.
        byhand: cell -> outcome of a start by hand; completed wins.
        turned_away: how many second starts there were.
    """

    taken: set[tuple[str, int]] = field(default_factory=set)
    ended: dict[tuple[str, int], str] = field(default_factory=dict)
    byhand: dict[str, str] = field(default_factory=dict)
    turned_away: int = 0


def read_attempts(directory: Path) -> Progress:
    """List what has begun and ended: one look at one directory, whatever the size of the plan."""
    taken: set[tuple[str, int]] = set()
    ended: dict[tuple[str, int], str] = {}
    restarts: dict[tuple[str, int], int] = {}
    byhand: dict[str, str] = {}
    turned_away = 0
    try:
        names = [entry.name for entry in os.scandir(directory / ATTEMPTS)]
    except FileNotFoundError:
        names = []
    except OSError as error:
        raise HpcrlError(f"{directory / ATTEMPTS}: cannot be read: {error.strerror}") from None
    for name in names:
        cell, _, rest = name.partition(".")
        start, _, outcome = rest.partition(".")
        attempt, _, restart = start.rpartition("-")
        if not cell or not attempt or not restart.isdecimal():
            continue
        if outcome.startswith("again-"):
            turned_away += 1
        elif not attempt.isdecimal():
            if outcome and byhand.get(cell) != COMPLETED:
                byhand[cell] = outcome
        else:
            key = (cell, int(attempt))
            taken.add(key)
            if not outcome or (last := restarts.get(key, -1)) > int(restart):
                continue
            if last < int(restart) or ended[key] == COMPLETED:  # a rank that failed outweighs one that completed
                restarts[key] = int(restart)
                ended[key] = outcome
    return Progress(taken, ended, byhand, turned_away)
