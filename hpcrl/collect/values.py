"""The values that a command reported, as columns: time and step of each entry, name of each value."""

from __future__ import annotations

import math
from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.formats.record import RecordError
from hpcrl.formats.shapes import COUNT, NUMBER, is_kind, shown

MAX_NAMES = 10_000  # of values in one record
_MOST_REPORTED = 100  # names of values in a record's summary


class Values:
    """Reported entries in their order. A value takes 12 bytes; Python objects would take 200."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.last_step = 0  # the maximum; 0 if no entry has a step
        # name -> its last, minimum and maximum value that is finite, for the first names
        self.reported: dict[str, list[float]] = {}
        self._times, self._steps, self._sizes = array("d"), array("d"), array("q")
        self._places, self._numbers = array("i"), array("d")

    def __len__(self) -> int:
        return len(self._times)

    def add(self, entry: Any) -> None:
        """Check and keep one entry: ``{"time": 1.0, "step": 7 or None, "values": {"loss": 0.5}}``.

        Raises:
            RecordError: it has another shape, or there are too many names.
        """
        if not isinstance(entry, dict) or not isinstance(entry.get("values"), dict):
            raise RecordError("has a reported value of the wrong shape")
        for name, number in entry["values"].items():
            value = checked_number(number)
            place = self.names.setdefault(name, len(self.names))
            if place == MAX_NAMES:
                raise RecordError(f"has reported values with more than {MAX_NAMES} names")
            self._places.append(place)
            self._numbers.append(value)
            self._note(name, value)
        self._times.append(checked_number(entry.get("time")))
        step = entry.get("step")
        if isinstance(step, int) and is_kind(COUNT, step):
            self.last_step = max(self.last_step, step)
            self._steps.append(step)
        else:
            self._steps.append(np.nan)
        self._sizes.append(len(entry["values"]))

    def _note(self, name: str, value: float) -> None:
        if not math.isfinite(value):
            return
        known = self.reported.get(name)
        if known:
            known[:] = value, min(known[1], value), max(known[2], value)
        elif len(self.reported) < _MOST_REPORTED:
            self.reported[name] = [value, value, value]

    def rows(self) -> NDArray[np.float64]:
        """Return (values, 4): step, time, value and NaN for a length."""
        sizes = np.frombuffer(self._sizes, np.int64)
        rows = np.full((len(self._numbers), 4), np.nan)
        rows[:, 0] = np.repeat(np.frombuffer(self._steps), sizes)
        rows[:, 1] = np.repeat(np.frombuffer(self._times), sizes)
        rows[:, 2] = np.frombuffer(self._numbers)
        return rows

    def places(self) -> NDArray[np.int32]:
        """Return (values,): the place of each value's name in `names`."""
        return np.frombuffer(self._places, np.int32)

    def entries(self) -> list[dict[str, Any]]:
        """Return the entries as they were reported."""
        names, place, entries = list(self.names), 0, []
        for time, step, size in zip(self._times, self._steps, self._sizes, strict=True):
            within = range(place, place + size)
            place += size
            values = {names[self._places[index]]: self._numbers[index] for index in within}
            entries.append({"time": time, "step": int(step) if step == step else None, "values": values})
        return entries


def checked_number(value: Any) -> float:
    """Return a number as a float.

    Raises:
        RecordError: it is something else.
    """
    if not is_kind(NUMBER, value):
        raise RecordError(f"has a wrong value: expected a number, got {shown(value)!r}")
    return float(value)
