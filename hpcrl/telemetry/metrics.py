"""Values that a user's program reports: JSON lines in the file that ``$HPCRL_METRICS`` names."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

VARIABLE = "HPCRL_METRICS"
LONGEST_LINE = 1024**2  # bytes
_BLOCK = 1024**2


def append(values: Mapping[str, float], step: int | None) -> None:
    """Append one line. Without the variable, do nothing.

    Raises:
        TypeError: a value is not a number.
    """
    numbers = {}
    for name, value in values.items():
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError):
            raise TypeError(f"hpcrl.log({name}={value!r}): a reported value must be a number") from None
    path = os.environ.get(VARIABLE)
    if not path:
        return
    line = json.dumps({"time": time.time(), "step": step, **numbers}) + "\n"
    # One write to a file opened for appending, so that lines of several processes do not mix.
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


class MetricsReader:
    """Reads the lines that were completed since the last reading."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._begun = b""  # the line that is not complete yet
        self._too_long = False  # it is left out
        self.malformed = 0

    def read(self) -> Iterator[dict[str, Any]]:
        """Give the new entries: ``time`` (Unix seconds or None), ``step`` (or None) and the reported numbers."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                while block := file.read(_BLOCK):
                    self._offset += len(block)
                    yield from self._entries(block)
        except OSError:
            return

    def _entries(self, block: bytes) -> Iterator[dict[str, Any]]:
        *lines, self._begun = (self._begun + block).split(b"\n")
        for line in lines:
            if self._too_long:
                self._too_long = False
            elif (entry := _parse(line)) is not None:
                yield entry
            else:
                self.malformed += 1
        if len(self._begun) > LONGEST_LINE:
            self.malformed += not self._too_long
            self._too_long = True
        if self._too_long:
            self._begun = b""


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict):
        return None
    step, at = entry.pop("step", None), entry.pop("time", None)
    if not all(_is_number(value) for value in entry.values()):
        return None
    return {
        "step": step if isinstance(step, int) and abs(step) < 2**62 else None,
        "time": at if _is_number(at) else None,
        **entry,
    }


def _is_number(value: Any) -> bool:
    """Tell whether a value fits a column of float64."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**1023)
