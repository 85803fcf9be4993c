"""Read what Slurm's commands print: ids, array indices, times."""

from __future__ import annotations

import re
from collections.abc import Sequence

_JOB_ID = re.compile(r"(\d+)(?:_(?:(\d+)|\[([^\]]+)\]))?$")


def alike(out: str) -> dict[tuple[str, str], list[int]]:
    """Group the lines of squeue or sacct that differ only in array indices: (job id, rest of the line) -> indices."""
    groups: dict[tuple[str, str], list[int]] = {}
    for line in out.splitlines():
        key, _, rest = line.partition("|")
        job_id, _, index = key.partition("_")
        if index.isdecimal() and job_id.isdecimal():  # most lines of sacct
            groups.setdefault((job_id, rest), []).append(int(index))
        elif (several := indices_of(key))[1]:
            groups.setdefault((several[0], rest), []).extend(several[1])
    return groups


def indices_of(text: str) -> tuple[str, Sequence[int]]:
    """Read ``12``, ``12_3`` or ``12_[0-9:2,14%3]``: the job id and the array indices, [0] for a job that is not an array."""
    match = _JOB_ID.match(text.strip())
    if not match:
        return "", ()
    job, task, several = match.groups()
    if task is not None:
        return job, (int(task),)
    if several is None:
        return job, (0,)
    indices: list[int] = []
    for part in several.partition("%")[0].split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        if first.isdigit():
            indices += range(int(first), int(last or first) + 1, int(step or 1))
    return job, indices


def cpu_seconds(text: str) -> float | None:
    """Read ``[days-][hours:]minutes:seconds[.fraction]``."""
    days, _, clock = text.rpartition("-")
    try:
        parts = [float(part) for part in clock.split(":")]
        seconds = sum(part * 60.0**power for power, part in enumerate(reversed(parts)))
        return seconds + 86_400.0 * int(days or 0)
    except ValueError:
        return None
