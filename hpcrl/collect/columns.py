"""The rows of many records, gathered column by column."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from hpcrl.collect.reading import Array, RecordData
from hpcrl.formats.record import SAMPLE_LISTS, TABLES
from hpcrl.formats.tables import SCHEMAS

SERIES = ("episodes", "samples", "phases")
_KEYS = ("plan", "cell", "attempt", "rank", "node")
# Values that a command reports under these names are its return.
_RETURNS = ("return", "episode_return")


class Builder:
    """Gathers records and gives the tables of one part."""

    def __init__(self) -> None:
        self._heads: list[dict[str, Any]] = []
        self._samples: list[Array] = []
        self._lists: dict[str, list[Array | None]] = {name: [] for name in SAMPLE_LISTS}
        # (record, kind, rows of `step, time, value, length`, names or None for returns)
        self._episodes: list[tuple[int, str, Array, list[str] | None]] = []
        self._phases: list[tuple[int, str, float, int]] = []

    def add(self, data: RecordData) -> None:
        number = len(self._heads)
        self._heads.append(data.header)
        data.column("samples", "unix_time")[:] -= data.header.get("clock_offset") or 0.0  # as the first node's clock
        self._samples.append(data.tables["samples"])
        for name, chunks in self._lists.items():
            chunks.append(data.lists.get(name))
        if len(episodes := data.tables["episodes"]):
            self._episodes.append((number, "train", episodes, None))
        if len(evaluations := data.tables["evaluations"]):
            without_length = np.column_stack([evaluations, np.full(len(evaluations), np.nan)])
            self._episodes.append((number, "evaluation", without_length, None))
        values = [(entry, name, value) for entry in data.values for name, value in entry["values"].items()]
        if values:
            rows = [(_or_nan(entry["step"]), entry["time"], value, np.nan) for entry, _, value in values]
            names = ["return" if name in _RETURNS else name for _, name, _ in values]
            self._episodes.append((number, "value", np.array(rows, np.float64), names))
        for phase, (seconds, count) in (data.phases or {}).items():
            self._phases.append((number, phase, seconds, count))

    def tables(self) -> dict[str, pa.Table]:
        """Return one table for each of :data:`SERIES`."""
        return {
            "episodes": self._table("episodes", *self._episode_columns()),
            "samples": self._table("samples", *self._sample_columns()),
            "phases": self._table("phases", *self._phase_columns()),
        }

    def _table(self, table: str, records: Array, columns: dict[str, pa.Array]) -> pa.Table:
        """Put the keys of each row's record before its columns."""
        keys = {}
        for name in _KEYS:
            values = [head[name] for head in self._heads]
            if name == "rank":
                keys[name] = pa.array(np.array(values, np.int64)[records])
            else:
                words = {word: index for index, word in enumerate(dict.fromkeys(values))}
                indices = np.array([words[value] for value in values], np.int32)[records]
                keys[name] = pa.DictionaryArray.from_arrays(pa.array(indices), pa.array(list(words), pa.string()))
        schema = SCHEMAS[table]
        made = keys | columns
        return pa.Table.from_arrays([made[field.name] for field in schema], schema=schema)

    def _sample_columns(self) -> tuple[Array, dict[str, pa.Array]]:
        counts = np.array([len(each) for each in self._samples], np.int64)
        names = TABLES["samples"]
        rows = np.concatenate([np.zeros((0, len(names))), *self._samples])
        columns = {
            name: _numbers(rows[:, index], SCHEMAS["samples"].field(name).type) for index, name in enumerate(names)
        }
        for name, chunks in self._lists.items():
            columns[name] = _lists(chunks, counts)
        return np.repeat(np.arange(len(counts)), counts), columns

    def _episode_columns(self) -> tuple[Array, dict[str, pa.Array]]:
        counts = [len(rows) for _, _, rows, _ in self._episodes]
        records = np.repeat(np.array([number for number, *_ in self._episodes], np.int64), counts)
        rows = np.concatenate([np.zeros((0, 4)), *(rows for _, _, rows, _ in self._episodes)])
        numbers, names, kinds = [np.zeros(0)], [], []
        for _, kind, some, named in self._episodes:
            numbers.append(np.arange(1.0, len(some) + 1) if kind == "train" else np.full(len(some), np.nan))
            names += named or ["return"] * len(some)
            kinds += [kind] * len(some)
        schema = SCHEMAS["episodes"]
        columns = {
            name: _numbers(rows[:, index], schema.field(name).type)
            for index, name in enumerate(("step", "time", "value", "length"))
        }
        columns["episode"] = _numbers(np.concatenate(numbers), schema.field("episode").type)
        columns["kind"] = pa.array(kinds, pa.string()).dictionary_encode()
        columns["name"] = pa.array(names, pa.string()).dictionary_encode()
        return records, columns

    def _phase_columns(self) -> tuple[Array, dict[str, pa.Array]]:
        records = np.array([number for number, *_ in self._phases], np.int64)
        return records, {
            "phase": pa.array([phase for _, phase, _, _ in self._phases], pa.string()).dictionary_encode(),
            "seconds": pa.array([seconds for *_, seconds, _ in self._phases], pa.float64()),
            "count": pa.array([count for *_, count in self._phases], pa.int64()),
        }


def _or_nan(value: int | None) -> float:
    return np.nan if value is None else value


def _numbers(values: Array, kind: pa.DataType) -> pa.Array:
    """Make a column; what is not finite is missing, and what is no whole number of 64 bits where one is wanted."""
    values = np.ascontiguousarray(values)
    missing = ~np.isfinite(values)
    if pa.types.is_integer(kind):
        missing |= np.abs(values) >= 2.0**62
    if not missing.any():
        return pa.array(values.astype(np.int64) if pa.types.is_integer(kind) else values, kind)
    if pa.types.is_integer(kind):
        values = np.where(missing, 0, values).astype(np.int64)
    return pa.array(values, kind, mask=missing)


def _lists(chunks: list[Array | None], counts: Array) -> pa.Array:
    """Make a column of lists; the rows of a record without them are missing."""
    kind = pa.list_(pa.float32())
    if not any(chunk is not None for chunk in chunks):
        return pa.nulls(int(counts.sum()), kind)
    lengths = np.repeat([0 if chunk is None else chunk.shape[1] for chunk in chunks], counts)
    missing = np.repeat([chunk is None for chunk in chunks], counts)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    values = np.concatenate([chunk.ravel() for chunk in chunks if chunk is not None])
    return pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(values, pa.float32()), type=kind, mask=pa.array(missing)
    )
