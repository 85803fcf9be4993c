"""One record, read without trusting it, as tables and a summary for the cell's row."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcrl.collect.values import Values, checked_number
from hpcrl.formats.fields import CODE, FOOTER, HEADER, NAMES, OPTIONAL, PROFILE, REQUIRED
from hpcrl.formats.files import is_plain_name
from hpcrl.formats.mappings import first_wrong_mapping, first_wrong_value
from hpcrl.formats.record import FORMAT, KINDS, SAMPLE_LISTS, TABLES, Frame, Layout, Layouts, RecordError, read_frames
from hpcrl.formats.shapes import COUNT, FACTS, MAX_WORDS, NUMBER, first_wrong, shown

OUTCOMES = ("completed", "failed", "timeout", "oom", "cancelled", "preempted", "diverged", "node_fail", "pruned")
# Stored in separate columns, because nearly all records of a dataset have the same values.
PROVENANCE = ("hardware", "software", "variables", "calibration", "code")
# Number of columns of the samples of format 3.
_THIRD_SAMPLES = TABLES["samples"].index("memory_peak")
# Number of columns of the evaluations up to format 4.
_FOURTH_EVALUATIONS = TABLES["evaluations"].index("began")
# The samples of format 1 had these columns only.
_FIRST_SAMPLES = (
    "time", "unix_time", "machine_cpu_percent", "machine_memory_percent", "cpu_seconds", "rss", "processes",
    "gpu_percent", "gpu_memory", "gpu_power", "gpu_energy",
)  # fmt: skip
Array = NDArray[Any]
_FLOAT = np.dtype(np.float64)
_MOST_PLACES = 1000  # remembered
_MOST_PHASES = 1000  # maximum number of names, also of a calibration
# Maximum bytes of NaN in list columns: a few wide rows must not make all other rows as wide.
_MOST_FILLED = 16 * 1024**2
_KINDS = frozenset(KINDS) - {"progress"}
_SERIES = tuple(kind for kind in TABLES if kind in _KINDS)


@dataclass
class RecordData:
    """What one record holds: header, footer (None: the attempt did not end by itself), tables.

    `tables` are (rows, columns) float64 with the columns of :data:`hpcrl.formats.record.TABLES`; `lists` are the
    columns of samples with one value for each core or GPU: (samples, cores) float32.
    """

    header: dict[str, Any]
    footer: dict[str, Any] | None = None
    phases: dict[str, Any] | None = None
    profile: dict[str, Any] | None = None
    tables: dict[str, Array] = field(default_factory=dict)
    lists: dict[str, Array] = field(default_factory=dict)
    reported: Values = field(default_factory=Values)
    events: list[str] = field(default_factory=list)
    events_size: int = 0
    wall_time: float = 0.0

    @property
    def values(self) -> list[dict[str, Any]]:
        """The values that a command reported, one entry per time."""
        return self.reported.entries()

    def column(self, table: str, name: str) -> Array:
        column: Array = self.tables[table][:, TABLES[table].index(name)]
        return column


def read_record(path: str | Path) -> RecordData:
    """Read and check one record; :class:`Reader` reads many.

    Raises:
        RecordError: it is damaged, hostile or too large, or it is not a record.
    """
    return Reader().read(path)


def provenance_text(name: str, value: Any) -> str:
    """Return the value of one name of :data:`PROVENANCE` in a header, as JSON.

    Raises:
        RecordError: it is not plain, or too long for a value of every row.
    """
    try:
        text = json.dumps(value, sort_keys=True)
    except (TypeError, ValueError):
        raise RecordError(f"has a wrong header: {name!r} contains values that are not plain") from None
    if len(text) > MAX_WORDS:
        raise RecordError(f"has a wrong header: {name!r}: expected at most {MAX_WORDS} characters, got {len(text)}")
    return text


class _Places(NamedTuple):
    """Which array of a layout is the table, and which are the list columns, with their number of values per row."""

    table: int
    lists: dict[str, tuple[int, int]]


class Reader:
    """Reads records one after another, and remembers the layouts of their frames."""

    def __init__(self) -> None:
        self._layouts: Layouts = {}
        self._places: dict[tuple[Layout, int], _Places] = {}

    def read(self, path: str | Path) -> RecordData:
        """Read and check a record.

        Raises:
            RecordError: as :func:`read_record`.
        """
        frames = read_frames(path, _KINDS, self._layouts)
        first = next(frames, None)
        if first is None:
            raise RecordError("has no complete frame")
        if first.kind != "header":
            raise RecordError("does not begin with a header")
        data = RecordData(_header(first.payload))
        version = first.payload.get("format", 1)
        del first
        self._gather(data, frames, version)
        if version < 4:
            self._from_the_start(data)
        data.wall_time = (data.footer or {}).get("wall_time") or self._last_time(path, data, version)
        return data

    def _gather(self, data: RecordData, frames: Iterator[Frame], version: int) -> None:
        """Check each frame when it is read, and keep its values as bytes: objects take up to 50 times as much memory."""
        tables = {kind: bytearray() for kind in _SERIES}
        lists = _Lists()
        for frame in frames:
            kind = frame.kind
            if kind in tables:
                tables[kind] += self._table(frame, version)
                if kind == "samples":
                    old = version < 3
                    places = _lists_of(frame.layout, "time") if old else self._of(kind, frame.layout, version).lists
                    lists.take(frame, places, frame.layout.arrays["time" if old else "table"][1][0])
            else:
                _take(data, kind, frame.payload)
            del frame  # before the next one is read
        for kind, content in tables.items():
            data.tables[kind] = _filled(np.frombuffer(content).reshape(-1, _width(kind, version)), kind)
        data.lists = lists.finished()

    @staticmethod
    def _from_the_start(data: RecordData) -> None:
        """Convert training times to times since the start of the record; without a footer they are unknown."""
        footer = data.footer or {}
        before = footer.get("setup_time", np.nan) + footer.get("compile_time", 0.0)
        for kind in ("episodes", "evaluations"):
            table = data.tables[kind].copy()
            table[:, TABLES[kind].index("time")] += before
            data.tables[kind] = table

    def _last_time(self, path: str | Path, data: RecordData, version: int) -> float:
        """Return the time of the last sample, or of the last progress if there are no samples."""
        times = data.column("samples", "time")
        if not len(times) and data.footer is None:
            place, width = TABLES["progress"].index("time"), _width("progress", version)
            frames = read_frames(path, frozenset({"progress"}), self._layouts)
            tables = (np.frombuffer(self._table(frame, version)).reshape(-1, width) for frame in frames)
            times = np.array([np.fmax.reduce(table[:, place], initial=0.0) for table in tables])
        return float(np.fmax.reduce(times, initial=0.0))  # but NaN

    def _table(self, frame: Frame, version: int) -> bytes:
        if version < 3:
            return _old_table(frame.kind, frame.payload, version).tobytes()
        return frame.arrays[self._of(frame.kind, frame.layout, version).table]

    def _of(self, kind: str, layout: Layout, version: int) -> _Places:
        key = layout, _width(kind, version)
        if (places := self._places.get(key)) is None:
            if len(self._places) >= _MOST_PLACES:
                self._places.clear()
            places = self._places[key] = _places_of(kind, *key)
        return places


class _Lists:
    """The list columns of samples: NaN if a frame lacks one, and empty if the number of cores changed."""

    def __init__(self) -> None:
        self._rows = 0
        self._widths: dict[str, int] = {}
        self._parts: dict[str, bytearray] = {}
        self._filled = 0

    def take(self, frame: Frame, places: Mapping[str, tuple[int, int]], rows: int) -> None:
        """Append the list columns of a frame with so many samples.

        Raises:
            RecordError: most rows of a very wide column are missing.
        """
        for name, (place, width) in places.items():
            if self._widths.setdefault(name, width) != width:
                self._widths[name] = -1
                self._parts.pop(name, None)
            if self._widths[name] == width:
                part = self._parts.setdefault(name, bytearray())
                self._fill(name)
                part += frame.arrays[place]
        self._rows += rows

    def _fill(self, name: str) -> None:
        part, width = self._parts[name], self._widths[name]
        if (missing := self._rows * width - len(part) // 4) > 0:
            self._filled += 4 * missing
            if self._filled > _MOST_FILLED:
                raise RecordError(f"has samples that mostly lack {name!r}, which has {width} values per row")
            part += np.full(missing, np.nan, np.float32).tobytes()

    def finished(self) -> dict[str, Array]:
        """Return the columns, each (samples, its width)."""
        for name in self._parts:
            self._fill(name)
        return {
            name: np.frombuffer(part, np.float32).reshape(self._rows, self._widths[name])
            for name, part in self._parts.items()
        }


def _take(data: RecordData, kind: str, payload: Mapping[str, Any]) -> None:
    """Check and keep a frame that is not a table."""
    if kind == "values":
        for entry in _list(payload.get("entries")):
            data.reported.add(entry)
    elif kind == "event":
        text = str(payload.get("text"))
        data.events_size += len(text)
        if data.events_size > MAX_WORDS:
            raise RecordError(f"has events of more than {MAX_WORDS} characters")
        data.events.append(text)
    elif kind == "calibration":
        _check_names("a calibration", payload)
        data.header["calibration"] = {str(name): checked_number(value) for name, value in payload.items()}
    elif kind == "phases":
        data.phases = _phases(payload)
    elif kind == "footer":
        data.footer = _footer(payload)
        data.profile = _profile(payload)


def _filled(table: Array, kind: str) -> Array:
    """Add the columns that records of older formats lack."""
    missing = len(TABLES[kind]) - table.shape[1]
    return np.pad(table, ((0, 0), (0, missing)), constant_values=np.nan) if missing else table


def _width(kind: str, version: int) -> int:
    """Return the number of columns of a table in records of a format."""
    if kind == "evaluations" and version < 5:
        return _FOURTH_EVALUATIONS
    return _THIRD_SAMPLES if (kind, version) == ("samples", 3) else len(TABLES[kind])


def _places_of(kind: str, layout: Layout, width: int) -> _Places:
    dtype, shape = layout.arrays.get("table", (None, ()))
    if dtype != _FLOAT or shape[1:] != (width,):
        raise RecordError(f"has {kind} without a proper table")
    return _Places(list(layout.arrays).index("table"), _lists_of(layout, "table") if kind == "samples" else {})


def _lists_of(layout: Layout, table: str) -> dict[str, tuple[int, int]]:
    """Return the place of each list column of a frame of samples, and its number of values per row; `table` has as many rows."""
    lists = {}
    rows = layout.arrays[table][1][0]
    for place, (name, (dtype, shape)) in enumerate(layout.arrays.items()):
        if name in SAMPLE_LISTS:
            if dtype != np.float32 or len(shape) != 2 or shape[0] != rows:
                raise RecordError(f"has samples without a proper column {name!r}")
            lists[name] = place, shape[1]
    return lists


def _header(payload: Mapping[str, Any]) -> dict[str, Any]:
    version = payload.get("format", 1)
    if not isinstance(version, int) or version > FORMAT:
        raise RecordError(
            f"has format {version!r}, but this hpcrl reads formats up to {FORMAT}: collect with the hpcrl that wrote it"
        )
    _check("header", payload, REQUIRED, required=True)
    if odd := [name for name in NAMES if not is_plain_name(payload[name])]:
        raise RecordError(f"has a wrong header: {odd[0]!r} is not a plain name")
    _check("header", payload, OPTIONAL)
    _check("header", payload.get("code") or {}, CODE)
    calibration = payload.get("calibration") or {}
    _check_names("a calibration", calibration)
    _check("header", calibration, dict.fromkeys(calibration, NUMBER), required=True)
    if wrong := first_wrong_value("hardware", payload["hardware"]):
        raise RecordError(f"has a wrong header: {wrong}")
    _check_text("header", "surroundings", payload.get("code") or {})
    return {name: payload[name] for name in HEADER if name in payload}


def _check(where: str, payload: Mapping[str, Any], kinds: Mapping[str, str], required: bool = False) -> None:
    if wrong := first_wrong(payload, kinds, required):
        raise RecordError(f"has a wrong {where}: {wrong}")


def _check_text(where: str, name: str, payload: Mapping[str, Any]) -> None:
    """Check a text that contains a mapping."""
    if payload.get(name) and (wrong := first_wrong_mapping(name, payload[name])):
        raise RecordError(f"has a wrong {where}: {name!r}: {wrong}")


def _check_names(where: str, payload: Mapping[str, Any]) -> None:
    if len(payload) > _MOST_PHASES:
        raise RecordError(f"has {where} with {len(payload)} names: the maximum is {_MOST_PHASES}")


def _old_table(kind: str, payload: Mapping[str, Any], version: int) -> Array:
    """Make the table of a frame of format 1 or 2, which had an array for each column and no lists."""
    names = TABLES[kind][: _width(kind, version)]
    if kind == "progress":
        return np.array([[checked_number(payload.get(name)) for name in names]])
    columns: list[Array] = []
    for name in names:
        array = payload.get(name)
        known = _FIRST_SAMPLES if version == 1 else TABLES["samples"][:_THIRD_SAMPLES]
        if kind == "samples" and name not in known and columns:
            array = np.full(len(columns[0]), np.nan)
        if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype != _FLOAT:
            raise RecordError(f"has {kind} without a proper column {name!r}")
        columns.append(array)
    if len({len(column) for column in columns}) > 1:
        raise RecordError(f"has {kind} with columns of different lengths")
    return np.stack(columns, axis=1)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise RecordError(f"has a wrong value: expected a list, got {shown(value)!r}")
    return value


def _phases(payload: Mapping[str, Any]) -> dict[str, Any]:
    seconds, counts = payload.get("seconds"), payload.get("counts")
    if not isinstance(seconds, dict) or not isinstance(counts, dict):
        raise RecordError("has phases of the wrong shape")
    _check_names("phases", seconds)
    _check("phases", counts, dict.fromkeys(counts, COUNT), required=True)
    return {str(name): (checked_number(value), counts.get(name, 0)) for name, value in seconds.items()}


def _profile(footer: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a footer says of the profile of its rank; None if there is none."""
    _check("footer", footer, {"profile": FACTS})
    if (profile := footer.get("profile")) is None:
        return None
    _check("profile", profile, PROFILE)
    if not profile.get("profiler") or not is_plain_name(profile.get("file") or "x"):
        raise RecordError("has a wrong profile: expected the names of a profiler and of a file")
    return {name: profile[name] for name in PROFILE if name in profile}


def _footer(payload: Mapping[str, Any]) -> dict[str, Any]:
    outcome = payload.get("outcome")
    if not isinstance(outcome, str) or outcome not in OUTCOMES:
        raise RecordError(f"has a footer with an unknown outcome: {shown(outcome)!r}")
    _check("footer", payload, FOOTER)
    _check_text("footer", "messages", payload)
    return {name: payload[name] for name in ("outcome", *FOOTER) if payload.get(name) is not None}
