"""The rows of many records, gathered column by column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hpcrl.collect.arrays import column, numbers, words
from hpcrl.collect.reading import Array, RecordData
from hpcrl.collect.summaries import Samples
from hpcrl.formats.facts import RETURNS
from hpcrl.formats.record import SAMPLE_LISTS
from hpcrl.formats.tables import ROW_KEYS, SCHEMAS

SERIES = ("episodes", "samples", "phases", "profiles")
# Times are kept to this part of a second. What is below is noise, and was a quarter of a dataset.
_TICKS = numbers(np.array([2.0**20]))[0]
_TRAIN, _EVALUATION, _VALUE = range(3)  # kinds of episodes


def tables(records: Sequence[RecordData], samples: Samples) -> Iterator[tuple[str, pa.Table]]:
    """Give one table for each of :data:`SERIES`, each made on demand. The list columns are removed from the records."""
    heads = [data.header for data in records]
    yield "episodes", _table("episodes", heads, *_episode_columns(records))
    yield "samples", _table("samples", heads, *_sample_columns(records, samples))
    yield "phases", _table("phases", heads, *_phase_columns(records))
    yield "profiles", _table("profiles", heads, *_profile_columns(records))


def _table(table: str, heads: Sequence[dict[str, Any]], records: Array, columns: dict[str, pa.Array]) -> pa.Table:
    """Add the keys of each row's record as its first columns."""
    keys = {}
    for name in ROW_KEYS:
        values = [head[name] for head in heads]
        if name == "rank":
            keys[name] = numbers(np.array(values, np.int64)[records])
        else:
            places = {word: place for place, word in enumerate(dict.fromkeys(values))}
            keys[name] = words(np.array([places[value] for value in values], np.int64)[records], list(places))
    schema = SCHEMAS[table]
    made = keys | columns
    return pa.Table.from_arrays([_in_ticks(made[field.name], field) for field in schema], schema=schema)


def _in_ticks(values: pa.Array, field: pa.Field) -> pa.Array:
    """Round times, and leave other columns as they are."""
    if field.type != pa.float64() or (field.metadata or {}).get(b"unit") != b"s":
        return values
    return pc.divide(pc.round(pc.multiply(values, _TICKS)), _TICKS)


def _sample_columns(records: Sequence[RecordData], samples: Samples) -> tuple[Array, dict[str, pa.Array]]:
    kinds = SCHEMAS["samples"]
    columns = {name: _measured(values, kinds.field(name).type) for name, values in samples.columns.items()}
    for name in SAMPLE_LISTS:
        columns[name] = _lists([data.lists.pop(name, None) for data in records], samples.counts)
    return np.repeat(np.arange(len(records)), samples.counts), columns


def _episode_columns(records: Sequence[RecordData]) -> tuple[Array, dict[str, pa.Array]]:
    # (record, place of the kind, rows of `step, time, value, length`, places of the names)
    parts: list[tuple[int, int, Array, Array]] = []
    names = {"return": 0}
    for number, data in enumerate(records):
        if len(episodes := data.tables["episodes"]):
            parts.append((number, _TRAIN, episodes, np.zeros(len(episodes), np.int64)))
        if len(evaluations := data.tables["evaluations"]):
            without_length = np.column_stack([evaluations[:, :3], np.full(len(evaluations), np.nan)])
            parts.append((number, _EVALUATION, without_length, np.zeros(len(evaluations), np.int64)))
        if len(local := data.reported.places()):
            places = [0 if name in RETURNS else names.setdefault(name, len(names)) for name in data.reported.names]
            parts.append((number, _VALUE, data.reported.rows(), np.array(places, np.int64)[local]))
    counts = [len(rows) for _, _, rows, _ in parts]
    every = np.concatenate([np.zeros((0, 4)), *(rows for _, _, rows, _ in parts)])
    kinds = np.repeat(np.array([kind for _, kind, _, _ in parts], np.int64), counts)
    within = np.concatenate([np.zeros(0), *(np.arange(1.0, count + 1) for count in counts)])
    schema = SCHEMAS["episodes"]
    columns = {
        name: _measured(every[:, index], schema.field(name).type)
        for index, name in enumerate(("step", "time", "value", "length"))
    }
    columns["episode"] = _measured(np.where(kinds == _TRAIN, within, np.nan), schema.field("episode").type)
    spans = np.full((len(every), 2), np.nan)
    spans[kinds == _EVALUATION] = np.concatenate([np.zeros((0, 2)), *map(_spans, records)])
    columns["began"], columns["seconds"] = (
        _measured(spans[:, place], schema.field(name).type) for place, name in enumerate(("began", "seconds"))
    )
    columns["kind"] = words(kinds, ["train", "evaluation", "value"])
    columns["name"] = words(np.concatenate([np.zeros(0, np.int64), *(indices for *_, indices in parts)]), list(names))
    return np.repeat(np.array([number for number, *_ in parts], np.int64), counts), columns


def _spans(data: RecordData) -> Array:
    """Return begin and duration of each evaluation of a record (evaluations, 2); NaN where they are not known."""
    began, spent = data.column("evaluations", "began"), data.column("evaluations", "spent")
    seconds = np.diff(spent, append=(data.footer or {}).get("evaluation_time", np.nan))
    return np.column_stack([began, np.where(seconds >= 0, seconds, np.nan)])


def _phase_columns(records: Sequence[RecordData]) -> tuple[Array, dict[str, pa.Array]]:
    rows = [
        (number, phase, seconds, count)
        for number, data in enumerate(records)
        for phase, (seconds, count) in (data.phases or {}).items()
    ]
    return np.array([number for number, *_ in rows], np.int64), {
        "phase": column([phase for _, phase, _, _ in rows], SCHEMAS["phases"].field("phase").type),
        "seconds": numbers(np.array([seconds for *_, seconds, _ in rows], np.float64)),
        "count": numbers(np.array([count for *_, count in rows], np.int64)),
    }


def _profile_columns(records: Sequence[RecordData]) -> tuple[Array, dict[str, pa.Array]]:
    profiles = [(number, data.profile) for number, data in enumerate(records) if data.profile]
    schema = SCHEMAS["profiles"]
    columns = {
        field.name: column(
            [profile.get("size" if field.name == "bytes" else field.name) for _, profile in profiles], field.type
        )
        for field in schema
        if field.name not in ROW_KEYS
    }
    return np.array([number for number, _ in profiles], np.int64), columns


def _measured(values: Array, kind: pa.DataType) -> pa.Array:
    """Make a column; a value is missing if it is not finite or, in a column of integers, has more than 62 bits."""
    values = np.ascontiguousarray(values)
    missing = ~np.isfinite(values)
    if pa.types.is_integer(kind):
        missing |= np.abs(values) >= 2.0**62
        values = np.where(missing, 0, values).astype(np.int64)
    return numbers(values, missing)


def _lists(chunks: list[Array | None], counts: Array) -> pa.Array:
    """Make a column of lists. Rows that are all NaN, and rows of a record without lists, are missing."""
    kind = pa.list_(pa.float32())
    if not any(chunk is not None for chunk in chunks):
        return pa.nulls(int(counts.sum()), kind)
    lengths = np.repeat([0 if chunk is None else chunk.shape[1] for chunk in chunks], counts)
    missing = np.concatenate(
        [
            np.ones(count, bool) if chunk is None else np.isnan(chunk).all(axis=1)
            for chunk, count in zip(chunks, counts, strict=True)
        ]
    )
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    values = np.concatenate([chunk.ravel() for chunk in chunks if chunk is not None])
    return pa.ListArray.from_arrays(numbers(offsets), numbers(values), type=kind, mask=numbers(missing))
