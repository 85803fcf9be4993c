"""One record, read without trusting it, as columns for the tables and a summary for the cell's row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hpcrl.formats.record import FORMAT, SAMPLE_COLUMNS, SAMPLE_LISTS, RecordError, read_frames

MAX_BYTES = 1024**3
_HEADER: dict[str, type | tuple[type, ...]] = {
    "plan": str, "study": str, "cluster": str, "cell": str, "attempt": str, "node": str, "rank": int, "ranks": int,
    "restarts": int, "started": float, "config": dict, "resources": dict, "workload": str, "environment": str,
    "hardware": dict, "software": dict, "variables": dict,
}  # fmt: skip
_COLUMNS = {
    "episodes": ("step", "time", "value", "length"),
    "evaluations": ("step", "time", "value"),
    "samples": SAMPLE_COLUMNS,
}
# The samples of format 1 had these columns only.
_FIRST_SAMPLES = (
    "time", "unix_time", "machine_cpu_percent", "machine_memory_percent", "cpu_seconds", "rss", "processes",
    "gpu_percent", "gpu_memory", "gpu_power", "gpu_energy",
)  # fmt: skip
Columns = dict[str, np.ndarray[Any, Any]]


@dataclass
class RecordData:
    """What one record holds: header, footer (None: the attempt did not end by itself), columns by table.

    `lists` are the columns of samples with one value for each core or GPU: (samples, cores) float32.
    """

    header: dict[str, Any]
    footer: dict[str, Any] | None = None
    phases: dict[str, Any] | None = None
    columns: dict[str, Columns] = field(default_factory=dict)
    lists: Columns = field(default_factory=dict)
    values: list[dict[str, Any]] = field(default_factory=list)
    last_time: float = 0.0


def read_record(path: Path) -> RecordData:
    """Read and check a record.

    Raises:
        RecordError: it is damaged, hostile, too large, or does not have the shape of a record.
    """
    if path.stat().st_size > MAX_BYTES:
        raise RecordError(f"has {path.stat().st_size} bytes: the most is {MAX_BYTES}")
    data: RecordData | None = None
    parts: dict[str, list[Columns]] = {kind: [] for kind in _COLUMNS}
    for frame in read_frames(path):
        if data is None:
            if frame.kind != "header":
                raise RecordError("does not begin with a header")
            data = RecordData(_header(frame.payload))
        elif frame.kind in _COLUMNS:
            parts[frame.kind].append(_columns(frame.kind, frame.payload, int(data.header.get("format", 1))))
        elif frame.kind == "values":
            data.values += [_value(entry) for entry in _list(frame.payload.get("entries"))]
        elif frame.kind == "phases":
            data.phases = _phases(frame.payload)
        elif frame.kind == "progress":
            data.last_time = max(data.last_time, _number(frame.payload.get("time")))
        elif frame.kind == "footer":
            data.footer = _footer(frame.payload)
    if data is None:
        raise RecordError("holds no whole frame")
    for kind, names in _COLUMNS.items():
        chunks = parts[kind]
        data.columns[kind] = {
            name: np.concatenate([each[name] for each in chunks]) if chunks else np.zeros(0) for name in names
        }
    for name in SAMPLE_LISTS:
        widths = {each[name].shape[1] for each in parts["samples"] if name in each}
        if len(widths) == 1 and all(name in each for each in parts["samples"]):
            data.lists[name] = np.concatenate([each[name] for each in parts["samples"]])
    times = [
        data.last_time,
        *(float(each["time"].max()) for kind, each in data.columns.items() if kind == "samples" and len(each["time"])),
    ]
    data.last_time = max(times)
    return data


def _header(payload: Mapping[str, Any]) -> dict[str, Any]:
    for name, kind in _HEADER.items():
        if not isinstance(payload.get(name), kind):
            raise RecordError(f"has a header whose {name!r} is {payload.get(name)!r}")
    version = payload.get("format", 1)
    if not isinstance(version, int) or version > FORMAT:
        raise RecordError(
            f"has format {version!r}, and this hpcrl reads up to {FORMAT}: collect with the hpcrl that wrote it"
        )
    return dict(payload)


def _columns(kind: str, payload: Mapping[str, Any], version: int) -> Columns:
    columns: Columns = {}
    for name in _COLUMNS[kind]:
        array = payload.get(name)
        if version == 1 and kind == "samples" and name not in _FIRST_SAMPLES and "time" in columns:
            array = np.full(len(columns["time"]), np.nan)
        if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype != np.float64:
            raise RecordError(f"has {kind} without a proper column {name!r}")
        columns[name] = array
    if len({len(each) for each in columns.values()}) > 1:
        raise RecordError(f"has {kind} with columns of different lengths")
    for name in SAMPLE_LISTS if kind == "samples" else ():
        array = payload.get(name)
        if array is None:
            continue
        if not isinstance(array, np.ndarray) or array.ndim != 2 or len(array) != len(columns["time"]):
            raise RecordError(f"has samples without a proper column {name!r}")
        columns[name] = array.astype(np.float32)
    return columns


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise RecordError("has values that are not a list")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RecordError(f"has {value!r} where a number should be")
    return float(value)


def _value(entry: Any) -> dict[str, Any]:
    if not isinstance(entry, dict) or not isinstance(entry.get("values"), dict):
        raise RecordError("has a reported value of the wrong shape")
    numbers = {str(name): _number(number) for name, number in entry["values"].items()}
    step = entry.get("step")
    return {
        "time": _number(entry.get("time")),
        "step": step if isinstance(step, int) else None,
        "values": numbers,
    }


def _phases(payload: Mapping[str, Any]) -> dict[str, Any]:
    seconds, counts = payload.get("seconds"), payload.get("counts")
    if not isinstance(seconds, dict) or not isinstance(counts, dict):
        raise RecordError("has phases of the wrong shape")
    return {str(name): (_number(value), int(_number(counts.get(name, 0)))) for name, value in seconds.items()}


def _footer(payload: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(payload.get("outcome"), str):
        raise RecordError("has a footer without an outcome")
    for name, value in payload.items():
        if not (value is None or isinstance(value, str | int | float)):
            raise RecordError(f"has a footer whose {name!r} is no plain value")
    return dict(payload)


def summary(data: RecordData) -> dict[str, Any]:
    """Return what the cell's row needs of one record, as plain values."""
    samples = data.columns["samples"]
    facts: dict[str, Any] = {
        "header": {name: data.header[name] for name in _HEADER}
        | {name: data.header.get(name) for name in ("job", "partition", "qos", "job_id")},
        "footer": data.footer,
        "wall_time": _number(data.footer["wall_time"])
        if data.footer and "wall_time" in data.footer
        else data.last_time,
        "episodes_seen": len(data.columns["episodes"]["step"]),
        "steps_seen": _last(data.columns["episodes"]["step"]),
    }
    evaluations = data.columns["evaluations"]["value"]
    facts["best_seen"] = float(evaluations.max()) if len(evaluations) else None
    if len(samples["time"]):
        for name in ("machine_cpu_percent", "machine_memory_percent", "gpu_percent"):
            facts[name] = _mean(samples[name])
        for name in ("cpu_seconds", "rss", "pss", "cgroup_cpu", "cgroup_memory_peak", "gpu_memory", "gpu_energy"):
            facts[name] = _most(samples[name])
    return facts


def _last(values: np.ndarray[Any, Any]) -> int | None:
    return int(values[-1]) if len(values) else None


def _mean(values: np.ndarray[Any, Any]) -> float | None:
    good = values[np.isfinite(values)]
    return float(good.mean()) if len(good) else None


def _most(values: np.ndarray[Any, Any]) -> float | None:
    good = values[np.isfinite(values)]
    return float(good.max()) if len(good) else None
