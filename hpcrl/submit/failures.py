"""Why a cell failed: the last line of its own in the log. The same failure of many cells is one cause."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from hpcrl.formats.attempts import BEGINS, CHECK_BEGINS
from hpcrl.formats.files import open_of_stranger
from hpcrl.schedulers.states import TaskStatus

_TAIL = 20_000  # bytes of the end of a log that are read
_LONG_TAIL = 1_000_000  # the same for a log that several cells share
# What srun and Open MPI say if Slurm cannot start ranks with the MPI that they need. No rank has said anything itself then.
_NO_MPI = re.compile(r"^srun: .*invalid MPI type|OMPI was not built with SLURM's PMI support", re.IGNORECASE)
_WITHOUT_MPI = (
    "srun: the MPI type in the script does not suit this site or the MPI library of the cell: set `launch.mpi` of the cluster's profile to "
    "one of `srun --mpi=list`, then make the plan again"
)
# Slurm runs a copy of the script, in a directory of each job's own.
_SPOOLED = re.compile(r"\S*/job\d+\S*/slurm_script")
# Parts of a message that differ between jobs with the same failure.
_VARYING = (
    (re.compile(r"(?<![A-Za-z0-9])(job(?:id)?[-_.=: ]?)\d+", re.IGNORECASE), r"\1N"),
    (re.compile(r"\b0x[0-9a-f]+\b", re.IGNORECASE), "0xN"),
    (re.compile(r"/tmp/[^\s/'\":,)]+"), "/tmp/N"),
    (re.compile(r"\d{5,}(_\d+)?"), "N"),
)


def own_last_line(log: Path, cell: str | None, script: str, shared: bool = False) -> str | None:
    """Return the last line of a log that the cell itself wrote: not the script before it, and not the launcher after it.

    If a check of the results began, it is the last line of the check.

    If Slurm could not start its ranks with their MPI, it is a sentence that says so.

    If the cell never began, it is the last line of the script. The log of a requeued job has a beginning for each
    start, and the last one counts.

    Args:
        cell: None for the log of a stage.
        script: named instead of Slurm's copy of it.
        shared: whether other cells of the array task have written to the log too.
    """
    for size in (_TAIL, _LONG_TAIL) if shared else (_TAIL,):
        try:
            with open_of_stranger(log, "rb", most=2**50) as file:
                start = max(0, os.fstat(file.fileno()).st_size - size)
                file.seek(start)
                lines = file.read().decode(errors="replace").split("\n")
        except OSError:
            return None
        begun = [match[1] if (match := BEGINS.fullmatch(line)) else None for line in lines]
        if not start or cell in begun:
            break
    if cell is not None:
        lines = _since(lines, begun, cell)
        if CHECK_BEGINS in lines:  # else the command's last words would explain why its check failed
            lines = lines[len(lines) - lines[::-1].index(CHECK_BEGINS) :]
    if any(_NO_MPI.search(line) for line in lines):
        return _WITHOUT_MPI
    own = [text for line in lines if (text := _text(line)) and not line.startswith(("srun:", "slurmstepd"))]
    return _SPOOLED.sub(lambda _: script, own[-1])[:300] if own else None


def _since(lines: list[str], begun: list[str | None], cell: str) -> list[str]:
    """Return the text from the last beginning of a cell to the next cell's; the whole text if no cell began."""
    if cell not in begun:
        return [] if any(begun) else lines
    first = len(begun) - begun[::-1].index(cell)
    last = next((number for number in range(first, len(begun)) if begun[number]), None)
    return lines[first:last]


def _text(line: str) -> str:
    """Return the visible text of a line: a progress bar overwrites what it wrote before."""
    return line.strip().rpartition("\r")[2].strip()


def without_a_word(directory: Path, status: TaskStatus, log: str | None, begun: bool) -> str:
    """Say what is known about a cell that failed without a footer of its record and without a line in its log."""
    try:
        empty = log is not None and not (directory / log).stat().st_size
        missing = log is None
    except OSError:
        empty, missing = False, True
    said = "there is no log" if missing else "its log is empty" if empty else "its log does not say why"
    known = "it began, but its record has no end" if begun else "it never began"
    return f"{_exit(status)}{known}, and {said}: {_room(directory)}"


def _exit(status: TaskStatus) -> str:
    code, _, number = ((status.slurm.exit_code if status.slurm else None) or "").partition(":")
    if number not in ("", "0"):
        return f"ended by signal {number}; "
    return f"exit code {code}; " if code not in ("", "0") else ""


def _room(directory: Path) -> str:
    try:
        disk = os.statvfs(directory)
    except OSError:
        return "the plan directory cannot be read now"
    if disk.f_bavail * disk.f_frsize < 1 << 20 or (disk.f_files and not disk.f_favail):
        return "the file system of the plan is full now: free some space, then submit again"
    return "was it killed, or was the disk or your quota full at that time?"


def counted(failures: Iterable[tuple[str | None, TaskStatus]]) -> dict[str, int]:
    """Count failures (cell or None for a stage, status) by cause, the most frequent first. Different ids, nodes and addresses are one cause."""
    counts: Counter[str] = Counter()
    alike: dict[str, set[str]] = {}
    for cell, status in failures:
        cause = f"{status.state}: {_general(cell, status)}" if status.reason else status.state
        counts[cause] += 1
        if len(told := alike.setdefault(cause, set())) < 2:
            told.add(f"{status.state}: {status.reason}" if status.reason else status.state)
    # If all messages are equal, the message is shown unchanged, because its advice must be exact.
    return {
        next(iter(alike[cause])) if len(alike[cause]) == 1 else cause: number for cause, number in counts.most_common()
    }


def _general(cell: str | None, status: TaskStatus) -> str:
    text = status.reason or ""
    if cell:
        text = text.replace(cell, "CELL")
    if status.slurm:
        for known, word in ((status.key, "JOB"), (status.slurm.nodes, "NODE")):
            if known and len(known) > 2:
                text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(known)}(?![A-Za-z0-9])", word, text)
    return _plain(text)


@cache
def _plain(text: str) -> str:
    for pattern, word in _VARYING:
        text = pattern.sub(word, text)
    return text
