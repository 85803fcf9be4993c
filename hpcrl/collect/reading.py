"""One record, read without trusting it, as tables and a summary for the cell's row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.formats.record import FORMAT, KINDS, SAMPLE_LISTS, TABLES, Layout, RecordError, read_frames

CLOCK_SECONDS = 1.0  # by more than this a node's wall clock was set while it was measured
_TEXT, _NUMBER, _COUNT, _TRUTH, _FACTS = "text", "a number", "a whole number", "true or false", "a mapping"
# What a header must have, and may have.
_HEADER = {
    "plan": _TEXT, "cell": _TEXT, "attempt": _TEXT, "node": _TEXT, "rank": _COUNT, "started": _NUMBER,
    "hardware": _FACTS, "software": _FACTS, "variables": _FACTS,
}  # fmt: skip
_HEADER_TOO = {
    "partition": _TEXT, "qos": _TEXT, "job_id": _TEXT, "clock_offset": _NUMBER, "code": _FACTS, "calibration": _FACTS,
}  # fmt: skip
_HARDWARE = {"cpu": _TEXT, "threads": _COUNT, "memory": _NUMBER, "kernel": _TEXT, "gpu_driver": _TEXT}
_CODE = {"git_commit": _TEXT, "git_dirty": _TRUTH, "modules": _TEXT}
_FOOTER = {
    "reason": _TEXT, "wall_time": _NUMBER, "training_time": _NUMBER, "setup_time": _NUMBER, "compile_time": _NUMBER,
    "phase_time": _NUMBER, "precise_phases": _TRUTH, "steps": _COUNT, "episodes": _COUNT, "final_score": _NUMBER,
    "best_score": _NUMBER, "goal_step": _COUNT, "goal_time": _NUMBER, "sampler_cpu": _NUMBER, "sampler_memory": _NUMBER,
    "framework_gpu_memory_peak": _NUMBER, "compiled": _TEXT, "collective": _TEXT, "lost_frames": _COUNT,
    "malformed_values": _COUNT,
}  # fmt: skip
OUTCOMES = ("completed", "failed", "timeout", "oom", "cancelled", "preempted", "diverged", "node_fail")
# Kept in columns of their own: nearly all records of a dataset say the same.
PROVENANCE = ("hardware", "software", "variables", "calibration", "code")
# The samples of format 1 had these columns only.
_FIRST_SAMPLES = (
    "time", "unix_time", "machine_cpu_percent", "machine_memory_percent", "cpu_seconds", "rss", "processes",
    "gpu_percent", "gpu_memory", "gpu_power", "gpu_energy",
)  # fmt: skip
_MEANS = ("machine_cpu_percent", "machine_memory_percent", "gpu_percent")
_PEAKS = ("cpu_seconds", "rss", "pss", "cgroup_cpu", "cgroup_memory_peak", "gpu_memory", "gpu_energy")
Array = NDArray[Any]
_FLOAT = np.dtype(np.float64)
_KEPT = tuple(name for name in (*_HEADER, *_HEADER_TOO) if name not in PROVENANCE)
_KINDS = frozenset(KINDS) - {"progress"}


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
    last_time: float = 0.0

    def column(self, table: str, name: str) -> Array:
        column: Array = self.tables[table][:, TABLES[table].index(name)]
        return column


def read_record(path: Path, layouts: dict[tuple[int, int], Layout] | None = None) -> RecordData:
    """Read and check a record; `layouts` is as for `read_frames`.

    Raises:
        RecordError: it is damaged, hostile, too large, or does not have the shape of a record.
    """
    data: RecordData | None = None
    version = FORMAT
    parts: dict[str, list[Array]] = {kind: [] for kind in TABLES}
    lists: dict[str, list[Array]] = {name: [] for name in SAMPLE_LISTS}
    for frame in read_frames(path, _KINDS, layouts):
        if data is None:
            if frame.kind != "header":
                raise RecordError("does not begin with a header")
            data = RecordData(_header(frame.payload))
            version = frame.payload.get("format", 1)
        elif frame.kind in TABLES:
            table = _table(frame.kind, frame.payload, version)
            parts[frame.kind].append(table)
            if frame.kind == "samples":
                for name in SAMPLE_LISTS:
                    if name in frame.payload:
                        lists[name].append(_list_column(name, frame.payload[name], len(table)))
        elif frame.kind == "values":
            data.values += [_value(entry) for entry in _list(frame.payload.get("entries"))]
        elif frame.kind == "phases":
            data.phases = _phases(frame.payload)
        elif frame.kind == "event":
            data.events.append(str(frame.payload.get("text")))
        elif frame.kind == "calibration":
            data.header["calibration"] = {str(name): _number(value) for name, value in frame.payload.items()}
        elif frame.kind == "footer":
            data.footer = _footer(frame.payload)
    if data is None:
        raise RecordError("holds no whole frame")
    for kind, names in TABLES.items():
        data.tables[kind] = np.concatenate(parts[kind]) if parts[kind] else np.zeros((0, len(names)))
    for name, chunks in lists.items():
        # What some frames lack, or have for another number of cores, is left out whole.
        if chunks and len(chunks) == len(parts["samples"]) and len({each.shape[1] for each in chunks}) == 1:
            data.lists[name] = np.concatenate(chunks)
    if len(times := data.column("samples", "time")):
        data.last_time = float(np.fmax.reduce(times, initial=0.0))  # but NaN
    elif data.footer is None:
        data.last_time = _last_progress(path, version)
    return data


def _last_progress(path: Path, version: int) -> float:
    """Return the time of the last progress that was made, for a record that has nothing else to tell it."""
    column = TABLES["progress"].index("time")
    found = [
        _table(frame.kind, frame.payload, version)[:, column] for frame in read_frames(path, frozenset({"progress"}))
    ]
    return float(np.fmax.reduce(np.concatenate(found), initial=0.0)) if found else 0.0


def _header(payload: Mapping[str, Any]) -> dict[str, Any]:
    version = payload.get("format", 1)
    if not isinstance(version, int) or version > FORMAT:
        raise RecordError(
            f"has format {version!r}, and this hpcrl reads up to {FORMAT}: collect with the hpcrl that wrote it"
        )
    _check("header", payload, _HEADER, required=True)
    _check("header", payload, _HEADER_TOO)
    _check("header", payload.get("code") or {}, _CODE)
    _check("header", payload["hardware"], _HARDWARE)
    if not all(isinstance(name, str) for name in _list(payload["hardware"].get("gpus") or [])):
        raise RecordError("has a header whose 'gpus' are not names")
    return dict(payload)


def _check(where: str, payload: Mapping[str, Any], kinds: Mapping[str, str], required: bool = False) -> None:
    for name, kind in kinds.items():
        value = payload.get(name)
        if not (_is(kind, value) or (value is None and not required)):
            raise RecordError(f"has a {where} whose {name!r} is {str(value)[:60]!r}, and not {kind}")


def _is(kind: str, value: Any) -> bool:
    if kind == _COUNT:
        return type(value) is int and 0 <= value < 2**62
    if kind == _NUMBER:
        return type(value) is float or (type(value) is int and abs(value) < 2**62)
    return isinstance(value, {_TEXT: str, _TRUTH: bool, _FACTS: dict}[kind])


def _table(kind: str, payload: Mapping[str, Any], version: int) -> Array:
    names = TABLES[kind]
    if version >= 3:
        table = payload.get("table")
        if not isinstance(table, np.ndarray) or table.dtype is not _FLOAT or table.shape[1:] != (len(names),):
            raise RecordError(f"has {kind} without a proper table")
        return table
    if kind == "progress":
        return np.array([[_number(payload.get(name)) for name in names]])
    columns: list[Array] = []
    for name in names:
        array = payload.get(name)
        if version == 1 and kind == "samples" and name not in _FIRST_SAMPLES and columns:
            array = np.full(len(columns[0]), np.nan)
        if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype != np.float64:
            raise RecordError(f"has {kind} without a proper column {name!r}")
        columns.append(array)
    if len({len(each) for each in columns}) > 1:
        raise RecordError(f"has {kind} with columns of different lengths")
    return np.stack(columns, axis=1)


def _list_column(name: str, array: Any, rows: int) -> Array:
    if not isinstance(array, np.ndarray) or array.ndim != 2 or len(array) != rows:
        raise RecordError(f"has samples without a proper column {name!r}")
    return array.astype(np.float32, copy=False)


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
    if payload.get("outcome") not in OUTCOMES:
        raise RecordError(f"has a footer whose outcome is {str(payload.get('outcome'))[:60]!r}")
    _check("footer", payload, _FOOTER)
    return {name: payload.get(name) for name in ("outcome", *_FOOTER)}


def summaries(records: Sequence[RecordData]) -> list[dict[str, Any]]:
    """Return what the cells' rows need of each record, as plain values."""
    statistics, strayed = _statistics([data.tables["samples"] for data in records])
    found = []
    for number, data in enumerate(records):
        head = data.header
        steps, returns = data.column("episodes", "step"), data.column("evaluations", "value")
        found.append(
            {
                "header": {name: head.get(name) for name in _KEPT},
                "footer": data.footer,
                "wall_time": (data.footer or {}).get("wall_time") or data.last_time,
                "episodes_seen": len(steps),
                "steps_seen": int(steps[-1]) if len(steps) and abs(steps[-1]) < 2**62 else None,
                "best_seen": float(returns.max()) if len(returns) else None,
                "notes": _notes(data, strayed[number]),
                **{name: value if (value := values[number]) == value else None for name, values in statistics.items()},
            }
        )
    return found


def _statistics(tables: Sequence[Array]) -> tuple[dict[str, list[float]], list[float]]:
    """Return for each table of samples the means of `_MEANS` and peaks of `_PEAKS` (NaN where nothing was read), and
    by how many seconds the wall clock strayed from the monotonic one."""
    names = TABLES["samples"]
    filled = [index for index, table in enumerate(tables) if len(table)]
    found = {name: np.full(len(tables), np.nan) for name in (*_MEANS, *_PEAKS)}
    strayed = np.zeros(len(tables))
    if filled:
        rows = np.concatenate([tables[index] for index in filled]).T
        columns = dict(zip(names, rows, strict=True))
        starts = np.cumsum([0, *(len(tables[index]) for index in filled[:-1])])
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
