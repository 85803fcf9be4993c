"""One record, read without trusting it, as tables and a summary for the cell's row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcrl.formats.files import is_plain_name
from hpcrl.formats.record import FORMAT, KINDS, SAMPLE_LISTS, TABLES, Frame, Layout, Layouts, RecordError, read_frames

CLOCK_SECONDS = 1.0  # by more than this a node's wall clock was set while it was measured
_TEXT, _NUMBER, _COUNT, _TRUTH, _FACTS = "text", "a number", "a whole number", "true or false", "a mapping"
_EXACTLY = {_TEXT: str, _NUMBER: float, _TRUTH: bool, _FACTS: dict}
# What a header must have, and may have.
_HEADER = {
    "plan": _TEXT, "cell": _TEXT, "attempt": _TEXT, "node": _TEXT, "rank": _COUNT, "started": _NUMBER,
    "hardware": _FACTS, "software": _FACTS, "variables": _FACTS,
}  # fmt: skip
_NAMES = ("plan", "cell", "attempt", "node")  # what files and rows are named after
_HEADER_TOO = {
    "partition": _TEXT, "qos": _TEXT, "job_id": _TEXT, "clock_offset": _NUMBER, "code": _FACTS, "calibration": _FACTS,
}  # fmt: skip
_HARDWARE = {"cpu": _TEXT, "threads": _COUNT, "memory": _NUMBER, "kernel": _TEXT, "gpu_driver": _TEXT}
_CODE = {"git_commit": _TEXT, "git_dirty": _TRUTH, "modules": _TEXT, "workdir": _TEXT}
_FOOTER = {
    "reason": _TEXT, "wall_time": _NUMBER, "training_time": _NUMBER, "setup_time": _NUMBER, "compile_time": _NUMBER,
    "phase_time": _NUMBER, "precise_phases": _TRUTH, "steps": _COUNT, "episodes": _COUNT, "final_score": _NUMBER,
    "best_score": _NUMBER, "goal_step": _COUNT, "goal_time": _NUMBER, "sampler_cpu": _NUMBER, "sampler_memory": _NUMBER,
    "framework_gpu_memory_peak": _NUMBER, "compiled": _TEXT, "collective": _TEXT, "lost_frames": _COUNT,
    "malformed_values": _COUNT, "own_cpu_seconds": _NUMBER, "own_context_switches": _COUNT, "largest_process": _COUNT,
    "unreaped": _TRUTH, "killed_by": _TEXT, "evaluation_time": _NUMBER, "goal_wall_time": _NUMBER,
    "resumed_step": _COUNT,
}  # fmt: skip
OUTCOMES = ("completed", "failed", "timeout", "oom", "cancelled", "preempted", "diverged", "node_fail")
# Kept in columns of their own: nearly all records of a dataset say the same.
PROVENANCE = ("hardware", "software", "variables", "calibration", "code")
# How many columns the samples of format 3 had.
_THIRD_SAMPLES = TABLES["samples"].index("memory_peak")
# The samples of format 1 had these columns only.
_FIRST_SAMPLES = (
    "time", "unix_time", "machine_cpu_percent", "machine_memory_percent", "cpu_seconds", "rss", "processes",
    "gpu_percent", "gpu_memory", "gpu_power", "gpu_energy",
)  # fmt: skip
_MEANS = ("machine_cpu_percent", "machine_memory_percent", "gpu_percent")
_PEAKS = (
    "cpu_seconds", "rss", "pss", "memory_peak", "cgroup_cpu", "cgroup_memory_peak", "gpu_memory", "gpu_energy", "cpu_energy",
)  # fmt: skip
Array = NDArray[Any]
_FLOAT = np.dtype(np.float64)
_KEPT = tuple(name for name in (*_HEADER, *_HEADER_TOO) if name not in PROVENANCE)
_MOST_PLACES = 1000  # remembered
_KINDS = frozenset(KINDS) - {"progress"}
_SERIES = tuple(kind for kind in TABLES if kind in _KINDS)

_MOST_REPORTED = 100  # names of values in a record's summary


@dataclass
class RecordData:
    """What one record holds: header, footer (None: the attempt did not end by itself), tables.

    `tables` are (rows, columns) float64 with the columns of :data:`hpcrl.formats.record.TABLES`; `lists` are the
    columns of samples with one value for each core or GPU: (samples, cores) float32.
    """

    header: dict[str, Any]
    footer: dict[str, Any] | None = None
    phases: dict[str, Any] | None = None
    tables: dict[str, Array] = field(default_factory=dict)
    lists: dict[str, Array] = field(default_factory=dict)
    values: list[dict[str, Any]] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    wall_time: float = 0.0

    def column(self, table: str, name: str) -> Array:
        column: Array = self.tables[table][:, TABLES[table].index(name)]
        return column


def read_record(path: str | Path) -> RecordData:
    """Read and check one record; :class:`Reader` reads many.

    Raises:
        RecordError: it is damaged, hostile, too large, or does not have the shape of a record.
    """
    return Reader().read(path)


class _Places(NamedTuple):
    """Which array of a layout is the table; which are the list columns, with their values a row."""

    table: int
    lists: dict[str, tuple[int, int]]


class Reader:
    """Reads records one after the other, and keeps what it learns of the layouts of their frames."""

    def __init__(self) -> None:
        self._layouts: Layouts = {}
        self._places: dict[tuple[Layout, int], _Places] = {}

    def read(self, path: str | Path) -> RecordData:
        """Read and check a record.

        Raises:
            RecordError: as :func:`read_record`.
        """
        data: RecordData | None = None
        frames: dict[str, list[Frame]] = {kind: [] for kind in KINDS}
        for frame in read_frames(path, _KINDS, self._layouts):
            if data is not None:
                frames[frame.kind].append(frame)
            elif frame.kind == "header":
                data = RecordData(_header(frame.payload))
            else:
                raise RecordError("does not begin with a header")
        if data is None:
            raise RecordError("holds no whole frame")
        version = data.header.get("format", 1)
        for kind in _SERIES:
            data.tables[kind] = self._table(kind, frames[kind], version)
        data.lists = self._lists(frames["samples"], version, len(data.tables["samples"]))
        data.values = [_value(entry) for frame in frames["values"] for entry in _list(frame.payload.get("entries"))]
        data.events = [str(frame.payload.get("text")) for frame in frames["event"]]
        for frame in frames["calibration"]:
            data.header["calibration"] = {str(name): _number(value) for name, value in frame.payload.items()}
        for frame in frames["phases"]:
            data.phases = _phases(frame.payload)
        for frame in frames["footer"]:
            data.footer = _footer(frame.payload)
        if version < 4:
            self._from_the_start(data)
        data.wall_time = (data.footer or {}).get("wall_time") or self._last_time(path, data, version)
        return data

    @staticmethod
    def _from_the_start(data: RecordData) -> None:
        """Count times from the start of the record, where they were training times; they are unknown without a footer."""
        footer = data.footer or {}
        before = footer.get("setup_time", np.nan) + footer.get("compile_time", 0.0)
        for kind in ("episodes", "evaluations"):
            table = data.tables[kind].copy()
            table[:, TABLES[kind].index("time")] += before
            data.tables[kind] = table

    def _last_time(self, path: str | Path, data: RecordData, version: int) -> float:
        """Return when the last sample was taken or, where nothing else tells it, when progress was made."""
        times = data.column("samples", "time")
        if not len(times) and data.footer is None:
            frames = list(read_frames(path, frozenset({"progress"}), self._layouts))
            times = self._table("progress", frames, version)[:, TABLES["progress"].index("time")]
        return float(np.fmax.reduce(times, initial=0.0))  # but NaN

    def _table(self, kind: str, frames: Sequence[Frame], version: int) -> Array:
        if version < 3:
            parts = [_old_table(kind, frame.payload, version).tobytes() for frame in frames]
        else:
            parts = [frame.arrays[self._of(kind, frame.layout, version).table] for frame in frames]
        table = np.frombuffer(b"".join(parts)).reshape(-1, _width(kind, version))
        missing = len(TABLES[kind]) - table.shape[1]
        return np.pad(table, ((0, 0), (0, missing)), constant_values=np.nan) if missing else table

    def _lists(self, frames: Sequence[Frame], version: int, rows: int) -> dict[str, Array]:
        """Return the list columns: NaN where a frame lacks one, and none at all where the number of cores changed."""
        layouts = {frame.layout for frame in frames}
        old = version < 3
        places = {
            each: _lists_of(each, "time") if old else self._of("samples", each, version).lists for each in layouts
        }
        widths: dict[str, set[int]] = {}
        for each in places.values():
            for name, (_, width) in each.items():
                widths.setdefault(name, set()).add(width)
        found = {}
        for name, (width, *others) in widths.items():
            if others:
                continue
            parts = [
                frame.arrays[places[frame.layout][name][0]]
                if name in places[frame.layout]
                else np.full(
                    (frame.layout.arrays["time" if old else "table"][1][0], width), np.nan, np.float32
                ).tobytes()
                for frame in frames
            ]
            found[name] = np.frombuffer(b"".join(parts), np.float32).reshape(rows, width)
        return found

    def _of(self, kind: str, layout: Layout, version: int) -> _Places:
        key = layout, _width(kind, version)
        if (found := self._places.get(key)) is None:
            if len(self._places) >= _MOST_PLACES:
                self._places.clear()
            found = self._places[key] = _places_of(kind, *key)
        return found


def _width(kind: str, version: int) -> int:
    """Return how many columns a table had in records of a format."""
    return _THIRD_SAMPLES if (kind, version) == ("samples", 3) else len(TABLES[kind])


def _places_of(kind: str, layout: Layout, width: int) -> _Places:
    dtype, shape = layout.arrays.get("table", (None, ()))
    if dtype != _FLOAT or shape[1:] != (width,):
        raise RecordError(f"has {kind} without a proper table")
    return _Places(list(layout.arrays).index("table"), _lists_of(layout, "table") if kind == "samples" else {})


def _lists_of(layout: Layout, table: str) -> dict[str, tuple[int, int]]:
    """Return the place of each list column of a frame of samples, and its values a row; `table` has as many rows."""
    found = {}
    rows = layout.arrays[table][1][0]
    for place, (name, (dtype, shape)) in enumerate(layout.arrays.items()):
        if name in SAMPLE_LISTS:
            if dtype != np.float32 or len(shape) != 2 or shape[0] != rows:
                raise RecordError(f"has samples without a proper column {name!r}")
            found[name] = place, shape[1]
    return found


def _header(payload: Mapping[str, Any]) -> dict[str, Any]:
    version = payload.get("format", 1)
    if not isinstance(version, int) or version > FORMAT:
        raise RecordError(
            f"has format {version!r}, and this hpcrl reads up to {FORMAT}: collect with the hpcrl that wrote it"
        )
    _check("header", payload, _HEADER, required=True)
    if odd := [name for name in _NAMES if not is_plain_name(payload[name])]:
        raise RecordError(f"has a header whose {odd[0]!r} is no name")
    _check("header", payload, _HEADER_TOO)
    _check("header", payload.get("code") or {}, _CODE)
    calibration = payload.get("calibration") or {}
    _check("header", calibration, dict.fromkeys(calibration, _NUMBER), required=True)
    _check("header", payload["hardware"], _HARDWARE)
    if not all(isinstance(name, str) for name in _list(payload["hardware"].get("gpus") or [])):
        raise RecordError("has a header whose 'gpus' are not names")
    return dict(payload)


def _check(where: str, payload: Mapping[str, Any], kinds: Mapping[str, str], required: bool = False) -> None:
    for name, kind in kinds.items():
        value = payload.get(name)
        if value is None and not required:
            continue
        if type(value) is not _EXACTLY.get(kind) and not _is(kind, value):
            raise RecordError(f"has a {where} whose {name!r} is {str(value)[:60]!r}, and not {kind}")


def _is(kind: str, value: Any) -> bool:
    if kind == _COUNT:
        return type(value) is int and 0 <= value < 2**62
    if kind == _NUMBER:
        return type(value) is float or (type(value) is int and abs(value) < 2**62)
    return type(value) is _EXACTLY[kind]


def _old_table(kind: str, payload: Mapping[str, Any], version: int) -> Array:
    """Make the table of a frame of format 1 or 2, which had an array for each column and no lists."""
    names = TABLES[kind]
    if kind == "progress":
        return np.array([[_number(payload.get(name)) for name in names]])
    columns: list[Array] = []
    for name in names:
        array = payload.get(name)
        known = _FIRST_SAMPLES if version == 1 else TABLES["samples"][:_THIRD_SAMPLES]
        if kind == "samples" and name not in known and columns:
            array = np.full(len(columns[0]), np.nan)
        if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype != _FLOAT:
            raise RecordError(f"has {kind} without a proper column {name!r}")
        columns.append(array)
    if len({len(each) for each in columns}) > 1:
        raise RecordError(f"has {kind} with columns of different lengths")
    return np.stack(columns, axis=1)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise RecordError(f"has {str(value)[:60]!r} where a list should be")
    return value


def _number(value: Any) -> float:
    if not _is(_NUMBER, value):
        raise RecordError(f"has {str(value)[:60]!r} where a number should be")
    return float(value)


def _value(entry: Any) -> dict[str, Any]:
    if not isinstance(entry, dict) or not isinstance(entry.get("values"), dict):
        raise RecordError("has a reported value of the wrong shape")
    numbers = {str(name): _number(number) for name, number in entry["values"].items()}
    step = entry.get("step")
    return {
        "time": _number(entry.get("time")),
        "step": step if _is(_COUNT, step) else None,
        "values": numbers,
    }


def _phases(payload: Mapping[str, Any]) -> dict[str, Any]:
    seconds, counts = payload.get("seconds"), payload.get("counts")
    if not isinstance(seconds, dict) or not isinstance(counts, dict):
        raise RecordError("has phases of the wrong shape")
    _check("phases", counts, dict.fromkeys(seconds, _COUNT))
    return {str(name): (_number(value), counts.get(name, 0)) for name, value in seconds.items()}


def _footer(payload: Mapping[str, Any]) -> dict[str, Any]:
    outcome = payload.get("outcome")
    if not isinstance(outcome, str) or outcome not in OUTCOMES:
        raise RecordError(f"has a footer whose outcome is {str(outcome)[:60]!r}")
    _check("footer", payload, _FOOTER)
    return {name: payload[name] for name in ("outcome", *_FOOTER) if payload.get(name) is not None}


@dataclass(frozen=True)
class Samples:
    """The samples of some records, one after the other: how many each has, and their columns, each (samples,)."""

    counts: Array
    columns: dict[str, Array]

    @classmethod
    def of(cls, records: Sequence[RecordData]) -> Samples:
        names = TABLES["samples"]
        tables = [data.tables["samples"] for data in records]
        counts = np.array([len(table) for table in tables], np.int64)
        rows = np.empty((len(names), counts.sum()))  # a column is contiguous
        np.concatenate([np.empty((0, len(names))), *tables], out=rows.T)
        columns = dict(zip(names, rows, strict=True))
        offsets = np.array([data.header.get("clock_offset") or 0.0 for data in records])
        columns["unix_time"] -= np.repeat(offsets, counts)  # as the first node's clock
        return cls(counts, columns)


def summaries(records: Sequence[RecordData], samples: Samples) -> list[dict[str, Any]]:
    """Return what the cells' rows need of each record, as plain values; what is not known is left out."""
    statistics, strayed = _statistics(samples)
    found = []
    for number, data in enumerate(records):
        head = data.header
        episodes, returns = data.column("episodes", "step"), data.column("evaluations", "value")
        found.append(
            {
                "header": {name: head[name] for name in _KEPT if head.get(name) is not None},
                "footer": data.footer,
                "wall_time": data.wall_time,
                "episodes_seen": len(episodes),
                "steps_seen": _steps(episodes[-1] if len(episodes) else _last_reported(data)),
                "best_seen": float(returns.max()) if len(returns) else None,
                **({"reported": _reported(data)} if data.values else {}),
                "notes": _notes(data, strayed[number]),
                **{name: value for name, values in statistics.items() if (value := values[number]) == value},
            }
        )
    return found


def _last_reported(data: RecordData) -> float:
    """Return the largest step that a command reported; 0 if none."""
    return max((each["step"] for each in data.values if each["step"] is not None), default=0)


def _reported(data: RecordData) -> dict[str, list[float]]:
    """Return the last, the least and the largest of each value that a command reported, of the first names."""
    found: dict[str, list[float]] = {}
    for each in data.values:
        for name, value in each["values"].items():
            if value != value or (name not in found and len(found) == _MOST_REPORTED):
                continue
            _, least, largest = found.get(name, (value, value, value))
            found[name] = [value, min(least, value), max(largest, value)]
    return found


def _steps(number: float) -> int | None:
    return int(number) if 0 < number < 2**62 else None


def _statistics(samples: Samples) -> tuple[dict[str, list[float]], list[float]]:
    """Return for each record the means of `_MEANS` and peaks of `_PEAKS` (NaN where nothing was read), and by how many
    seconds the wall clock strayed from the monotonic one."""
    counts, columns = samples.counts, samples.columns
    filled = counts > 0
    starts = (np.cumsum(counts) - counts)[filled]
    found = {name: np.full(len(counts), np.nan) for name in (*_MEANS, *_PEAKS)}
    strayed = np.zeros(len(counts))
    if filled.any():
        for name in _MEANS:
            found[name][filled] = _means(columns[name], starts)
        for name in _PEAKS:
            found[name][filled] = _peaks(columns[name], starts)
        with np.errstate(invalid="ignore"):  # infinite ones count as not read
            apart = columns["unix_time"] - columns["time"]
        strayed[filled] = np.nan_to_num(_peaks(apart, starts) + _peaks(-apart, starts))
    return {name: values.tolist() for name, values in found.items()}, strayed.tolist()


def _means(values: Array, starts: Array) -> Array:
    known = np.isfinite(values)
    counts = np.add.reduceat(known, starts, dtype=np.int64)
    sums = np.add.reduceat(np.where(known, values, 0.0), starts)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _peaks(values: Array, starts: Array) -> Array:
    most = np.maximum.reduceat(np.where(np.isfinite(values), values, -np.inf), starts)
    return np.where(np.isfinite(most), most, np.nan)


def _notes(data: RecordData, strayed: float) -> list[str]:
    """Return what a reader of the numbers should know of this record."""
    node, footer = data.header["node"], data.footer or {}
    found = [f"{node}: {text}" for text in dict.fromkeys(data.events)]
    if lost := footer.get("lost_frames"):
        found.append(f"{node}: {lost} frames could not be written and are lost")
    if malformed := footer.get("malformed_values"):
        found.append(f"{node}: {malformed} reported values had a wrong form and are left out")
    if strayed > CLOCK_SECONDS:
        found.append(f"{node}: its wall clock was set by {strayed:.1f} s in the meantime")
    return found
