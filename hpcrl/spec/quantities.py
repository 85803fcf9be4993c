"""Times, memories and names as Slurm and people write them."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import BeforeValidator, StringConstraints

_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_MEMORY = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT])(?:i?B)?", re.IGNORECASE)
_LARGEST = 1e9  # number without a unit that may be a memory
_MIB = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}


def parse_time(value: Any) -> int:
    """Return the seconds of a Slurm time: ``MM:SS`` (with minutes), ``HH:MM:SS``, ``D-HH[:MM[:SS]]``.

    Raises:
        ValueError: the text has another form; the message says what to write instead.
    """
    if isinstance(value, str) and (match := _TIME.fullmatch(value.strip())):
        days, first, second, third = match.groups()
        numbers = [int(part) if part else 0 for part in (first, second, third)]
        if days is not None:
            seconds = int(days) * 86400 + numbers[0] * 3600 + numbers[1] * 60 + numbers[2]
        elif third is not None:
            seconds = numbers[0] * 3600 + numbers[1] * 60 + numbers[2]
        elif second is not None:
            seconds = numbers[0] * 60 + numbers[1]
        else:
            raise ValueError(f'"{value}" is not a Slurm time; try {format_time(60 * numbers[0])} for minutes')
        if _is_overfull(days, numbers, third is not None):
            raise ValueError(
                f'"{value}" is not a Slurm time: the maximum is 23 for hours after days, 59 for minutes and seconds; try {format_time(seconds)}'
            )
        if seconds <= 0:
            raise ValueError(f'"{value}" is zero; try 00:10:00')
        return seconds
    raise ValueError(f'"{value}" is not a Slurm time; try {_nearest_time(value)}')


def _is_overfull(days: str | None, numbers: list[int], of_hours: bool) -> bool:
    """Tell whether a part of a time, except the first, is above its maximum (23 or 59)."""
    most = [23, 59, 59] if days is not None else [math.inf, 59, 59 if of_hours else 0]
    return any(number > limit for number, limit in zip(numbers, most, strict=True))


def _nearest_time(value: Any) -> str:
    words = re.fullmatch(r"\s*(\d+)\s*(s|m|h|d)[a-z]*\s*", str(value).lower())
    if words:
        return format_time(int(words[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[words[2]])
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return format_time(60 * value)
    return "04:00:00"


def format_time(seconds: float) -> str:
    """Write seconds as ``[D-]HH:MM:SS``, rounded up to a whole second."""
    whole = int(-(-seconds // 1))
    days, rest = divmod(whole, 86400)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


def parse_memory(value: Any) -> int:
    """Return the MiB of a memory such as ``512G``, ``1.5T`` or ``4000M`` (powers of 1024, as in Slurm).

    Raises:
        ValueError: the unit is missing or unknown.
    """
    if isinstance(value, str) and (match := _MEMORY.fullmatch(value.strip())):
        mib = int(float(match[1]) * _MIB[match[2].upper()])
        if mib > 0:
            return mib
        raise ValueError(f"expected a memory of at least 1 MiB, such as 64M, got {value}")
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _LARGEST
    units = f"{value}M (Slurm's own unit) or {value}G" if known else "4G"
    raise ValueError(f'"{value}" is not a memory with a unit (K, M, G or T); try {units}')


def format_memory(mib: int) -> str:
    """Write MiB in the largest unit that keeps it whole."""
    return f"{mib // 1024}G" if mib % 1024 == 0 else f"{mib}M"


Seconds = Annotated[int, BeforeValidator(parse_time, json_schema_input_type=str)]
MiB = Annotated[int, BeforeValidator(parse_memory, json_schema_input_type=str)]
# Names that become part of file names, job names and #SBATCH lines.
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$", max_length=64)]
