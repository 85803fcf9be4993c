"""The summary of each record, from which the rows of cells are made: means and peaks of the samples, counts, notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcrl.collect.reading import PROVENANCE, Array, RecordData
from hpcrl.formats.fields import HEADER
from hpcrl.formats.record import TABLES

CLOCK_SECONDS = 1.0  # a larger difference from the monotonic clock means that the wall clock was set
_MEANS = ("machine_cpu_percent", "machine_memory_percent", "gpu_percent")
_PEAKS = (
    "cpu_seconds", "rss", "pss", "memory_peak", "cgroup_cpu", "cgroup_memory_peak", "gpu_memory", "gpu_energy", "cpu_energy",
)  # fmt: skip
_KEPT = tuple(name for name in HEADER if name not in PROVENANCE)


@dataclass(frozen=True)
class Samples:
    """The samples of some records, one record after another: the number of each, and their columns, each (samples,)."""

    counts: Array
    columns: dict[str, Array]

    @classmethod
    def of(cls, records: Sequence[RecordData]) -> Samples:
        names = TABLES["samples"]
        # Removed from the records, so that they are in memory only once, as columns.
        tables = [data.tables.pop("samples") for data in records]
        counts = np.array([len(table) for table in tables], np.int64)
        rows = np.empty((len(names), counts.sum()))  # a column is contiguous
        np.concatenate([np.empty((0, len(names))), *tables], out=rows.T)
        del tables
        columns = dict(zip(names, rows, strict=True))
        offsets = np.array([data.header.get("clock_offset") or 0.0 for data in records])
        columns["unix_time"] -= np.repeat(offsets, counts)  # in the first node's time
        return cls(counts, columns)


def summaries(records: Sequence[RecordData], samples: Samples) -> list[dict[str, Any]]:
    """Return the summary of each record as plain values; unknown values are left out."""
    statistics, strayed = _statistics(samples)
    rows = []
    for number, data in enumerate(records):
        head = data.header
        episodes, returns = data.column("episodes", "step"), data.column("evaluations", "value")
        rows.append(
            {
                "header": {name: head[name] for name in _KEPT if head.get(name) is not None},
                "footer": data.footer,
                "wall_time": data.wall_time,
                "episodes_seen": len(episodes),
                "steps_seen": _steps(episodes[-1] if len(episodes) else data.reported.last_step),
                "best_seen": float(returns.max()) if len(returns) else None,
                **({"reported": data.reported.reported} if len(data.reported) else {}),
                "notes": _notes(data, strayed[number]),
                **{name: value for name, values in statistics.items() if (value := values[number]) == value},
            }
        )
    return rows


def _steps(number: float) -> int | None:
    return int(number) if 0 < number < 2**62 else None


def _statistics(samples: Samples) -> tuple[dict[str, list[float]], list[float]]:
    """Return for each record the means of `_MEANS` and peaks of `_PEAKS` (NaN where nothing was read), and by how many
    seconds the wall clock strayed from the monotonic one."""
    counts, columns = samples.counts, samples.columns
    filled = counts > 0
    starts = (np.cumsum(counts) - counts)[filled]
    statistics = {name: np.full(len(counts), np.nan) for name in (*_MEANS, *_PEAKS)}
    strayed = np.zeros(len(counts))
    if filled.any():
        for name in _MEANS:
            statistics[name][filled] = _means(columns[name], starts)
        for name in _PEAKS:
            statistics[name][filled] = _peaks(columns[name], starts)
        with np.errstate(invalid="ignore"):  # infinite values count as missing
            apart = columns["unix_time"] - columns["time"]
        strayed[filled] = np.nan_to_num(_peaks(apart, starts) + _peaks(-apart, starts))
    return {name: values.tolist() for name, values in statistics.items()}, strayed.tolist()


def _means(values: Array, starts: Array) -> Array:
    known = np.isfinite(values)
    counts = np.add.reduceat(known, starts, dtype=np.int64)
    sums = np.add.reduceat(np.where(known, values, 0.0), starts)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _peaks(values: Array, starts: Array) -> Array:
    most = np.maximum.reduceat(np.where(np.isfinite(values), values, -np.inf), starts)
    return np.where(np.isfinite(most), most, np.nan)


def _notes(data: RecordData, strayed: float) -> list[str]:
    """Return the notes of this record."""
    node, footer = data.header["node"], data.footer or {}
    notes = [f"{node}: {text}" for text in dict.fromkeys(data.events)]
    if lost := footer.get("lost_frames"):
        notes.append(f"{node}: {lost} frames could not be written and are lost")
    if malformed := footer.get("malformed_values"):
        notes.append(f"{node}: {malformed} reported values had a wrong form and were left out")
    if strayed > CLOCK_SECONDS:
        notes.append(f"{node}: its wall clock was set by {strayed:.1f} s during the attempt")
    return notes
