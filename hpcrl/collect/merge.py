"""Merge the records of plans into a dataset: streaming, incremental, bounded in memory, deterministic."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hpcrl.collect.attempts import accounted_attempts, attempt_rows
from hpcrl.collect.reading import RecordData, read_record, summary
from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.files import write_atomically
from hpcrl.formats.plan import RECORDS, Plan, read_cells, read_plan
from hpcrl.formats.record import SUFFIX, RecordError
from hpcrl.formats.tables import INDEX, QUARANTINE, SCHEMAS, VERSION, read_index
from hpcrl.slurm.client import Slurm

BATCH = 2_000  # records in memory at once, and in one part
SERIES = ("episodes", "samples", "phases")
_SUMMARIES = "records"  # one JSON summary for each record, from which the cells' rows are made
_SUMMARY_SCHEMA = pa.schema([("plan", pa.string()), ("record", pa.string()), ("summary", pa.string())])
Report = Callable[[int, int], None]


@dataclass
class Collected:
    """What one call of :func:`collect` did."""

    merged: int = 0
    unchanged: int = 0
    attempts: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    quarantined: list[dict[str, str]] = field(default_factory=list)


def collect(plans: Sequence[Path], dataset: Path, slurm: Slurm, report: Report = lambda done, total: None) -> Collected:
    """Merge what is new in some plans into a dataset, which is made if it is not there.

    Records that cannot be read are left where they are, listed with the reason in ``quarantine.json``, and counted.

    Raises:
        UsageError: a directory is no plan, or the dataset has another format.
        HpcrlError: the dataset cannot be written.
    """
    opened = [(each, read_plan(each)) for each in plans]
    index = _open(dataset)
    done = Collected()
    fresh = _fresh(opened, index["records"], done)
    quarantine = {each["record"]: each for each in _read_quarantine(dataset)}
    try:
        _forget(dataset, index, {name for name, _, _ in fresh})
        cells = _cells(opened)
        for start in range(0, len(fresh), BATCH):
            _merge_batch(dataset, index, fresh[start : start + BATCH], cells, quarantine, done)
            report(min(start + BATCH, len(fresh)), len(fresh))
        _write_cells(dataset, opened, slurm, done)
        write_atomically(
            dataset / QUARANTINE,
            json.dumps(sorted(quarantine.values(), key=lambda each: each["record"]), indent=1) + "\n",
        )
        index["goals"] |= {
            plan.study["name"]: plan.study["goal"] for _, plan in opened if plan.study.get("goal") is not None
        }
        write_atomically(dataset / INDEX, json.dumps(index, indent=1, sort_keys=True) + "\n")
    except (OSError, pa.ArrowException) as error:
        raise HpcrlError(
            f"{dataset}: cannot be written: {error}: what was merged before is kept; collect again"
        ) from None
    done.quarantined = sorted(quarantine.values(), key=lambda each: each["record"])
    return done


def check(plans: Sequence[Path], dataset: Path) -> Collected:
    """Say what :func:`collect` would merge and what it would quarantine, and write nothing.

    Raises:
        UsageError: a directory is no plan, or the dataset has another format.
    """
    opened = [(each, read_plan(each)) for each in plans]
    known = read_index(dataset)["records"] if (dataset / INDEX).exists() else {}
    done = Collected()
    cells = _cells(opened)
    for name, path, plan in _fresh(opened, known, done):
        try:
            _read(path, plan, cells)
            done.merged += 1
        except RecordError as error:
            done.quarantined.append({"record": name, "file": str(path), "reason": str(error)})
    return done


def _fresh(
    opened: Sequence[tuple[Path, Plan]], known: dict[str, list[Any]], done: Collected
) -> list[tuple[str, Path, Plan]]:
    """Return the records that are new or have grown; the others are counted."""
    fresh: list[tuple[str, Path, Plan]] = []
    for directory, plan in opened:
        for path in sorted((directory / RECORDS).glob(f"*{SUFFIX}")):
            name = f"{plan.id}/{path.name}"
            stat = path.stat()
            if known.get(name, [None, None])[:2] == [stat.st_size, stat.st_mtime_ns]:
                done.unchanged += 1
            else:
                fresh.append((name, path, plan))
    return fresh


def _cells(opened: Sequence[tuple[Path, Plan]]) -> dict[str, set[str]]:
    return {plan.id: {cell.id for cell in read_cells(directory)} for directory, plan in opened}


def _read(path: Path, plan: Plan, cells: dict[str, set[str]]) -> RecordData:
    data = read_record(path)
    if data.header["plan"] != plan.id or data.header["cell"] not in cells[plan.id]:
        raise RecordError("is of a cell that this plan does not have")
    return data


def _open(dataset: Path) -> dict[str, Any]:
    if (dataset / INDEX).exists():
        return read_index(dataset)
    if dataset.exists() and any(dataset.iterdir()):
        raise UsageError(f"{dataset}: exists and is not a dataset: choose another directory with -o")
    try:
        for table in (*SCHEMAS, _SUMMARIES):
            (dataset / table).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HpcrlError(f"{dataset}: cannot be made: {error.strerror}") from None
    return {"format": "hpcrl-dataset", "version": VERSION, "parts": 0, "goals": {}, "records": {}}


def _read_quarantine(dataset: Path) -> list[dict[str, str]]:
    path = dataset / QUARANTINE
    entries: list[dict[str, str]] = json.loads(path.read_text()) if path.exists() else []
    return entries


def _part(dataset: Path, table: str, number: int) -> Path:
    return dataset / table / f"part-{number:05d}.parquet"


def _forget(dataset: Path, index: dict[str, Any], names: set[str]) -> None:
    """Take the rows of records that have grown out of the parts that hold them."""
    stale: dict[int, set[str]] = {}
    for name in names & set(index["records"]):
        number = index["records"].pop(name)[2]
        if number is not None:
            stale.setdefault(number, set()).add(name)
    for number, gone in stale.items():
        summaries = pq.read_table(_part(dataset, _SUMMARIES, number))
        whole = [
            f"{plan}/{record}"
            for plan, record in zip(summaries["plan"].to_pylist(), summaries["record"].to_pylist(), strict=True)
        ]
        keep = pa.array([name not in gone for name in whole])
        lost = set()
        for name, text in zip(whole, summaries["summary"].to_pylist(), strict=True):
            if name in gone:
                head = json.loads(text)["header"]
                lost.add((name.partition("/")[0], head["cell"], head["attempt"], head["rank"]))
        for table in SERIES:
            rows = pq.read_table(_part(dataset, table, number), schema=SCHEMAS[table])
            keys = zip(*(rows[column].to_pylist() for column in ("plan", "cell", "attempt", "rank")), strict=True)
            _write(
                _part(dataset, table, number),
                rows.filter(pa.array([key not in lost for key in keys], pa.bool_())),
            )
        _write(_part(dataset, _SUMMARIES, number), summaries.filter(keep))


def _write(path: Path, table: pa.Table) -> None:
    temporary = path.with_name(f".{path.name}")
    pq.write_table(table, temporary, compression="zstd")
    temporary.replace(path)


def _merge_batch(
    dataset: Path,
    index: dict[str, Any],
    batch: list[tuple[str, Path, Plan]],
    cells: dict[str, set[str]],
    quarantine: dict[str, dict[str, str]],
    done: Collected,
) -> None:
    number = index["parts"]
    index["parts"] += 1
    builders = {table: _Builder(SCHEMAS[table]) for table in SERIES}
    summaries: list[dict[str, str]] = []
    for name, path, plan in batch:
        stat = path.stat()
        try:
            data = _read(path, plan, cells)
        except RecordError as error:
            quarantine[name] = {"record": name, "file": str(path), "reason": str(error)}
            index["records"][name] = [stat.st_size, stat.st_mtime_ns, None]
            continue
        quarantine.pop(name, None)
        _add(builders, data)
        summaries.append({"plan": plan.id, "record": path.name, "summary": json.dumps(summary(data), sort_keys=True)})
        index["records"][name] = [stat.st_size, stat.st_mtime_ns, number]
        done.merged += 1
    for table, builder in builders.items():
        _write(_part(dataset, table, number), builder.table())
    _write(_part(dataset, _SUMMARIES, number), pa.Table.from_pylist(summaries, schema=_SUMMARY_SCHEMA))


class _Builder:
    """Gathers columns of one table; a single value stands for a whole column."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._chunks: list[pa.RecordBatch] = []

    def add(self, rows: int, columns: dict[str, Any]) -> None:
        if rows == 0:
            return
        arrays = []
        for column in self._schema:
            value = columns.get(column.name)
            if isinstance(value, np.ndarray) and value.ndim == 2:
                starts = np.arange(0, value.size + 1, value.shape[1], dtype=np.int32)
                arrays.append(pa.ListArray.from_arrays(starts, pa.array(value.ravel(), column.type.value_type)))
            elif isinstance(value, np.ndarray):
                missing = ~np.isfinite(value)
                if pa.types.is_integer(column.type):
                    value = np.where(missing, 0, value).astype(np.int64)
                arrays.append(pa.array(value, column.type, mask=missing))
            elif isinstance(value, list):
                arrays.append(pa.array(value, column.type))
            else:
                arrays.append(pa.repeat(pa.scalar(value, column.type), rows))
        self._chunks.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def table(self) -> pa.Table:
        return pa.Table.from_batches(self._chunks, schema=self._schema).combine_chunks()


def _add(builders: dict[str, _Builder], data: RecordData) -> None:
    head = data.header
    keys = {name: head[name] for name in ("plan", "cell", "attempt", "rank", "node")}
    episodes = data.columns["episodes"]
    count = len(episodes["step"])
    builders["episodes"].add(
        count,
        {
            **keys,
            **episodes,
            "kind": "train",
            "name": "return",
            "episode": np.arange(1, count + 1, dtype=np.float64),
        },
    )
    evaluations = data.columns["evaluations"]
    builders["episodes"].add(len(evaluations["step"]), {**keys, **evaluations, "kind": "evaluation", "name": "return"})
    rows = [
        (entry["time"], entry["step"], name, value) for entry in data.values for name, value in entry["values"].items()
    ]
    if rows:
        times, steps, names, values = (list(column) for column in zip(*rows, strict=True))
        named = ["return" if name in ("return", "episode_return") else name for name in names]
        builders["episodes"].add(
            len(rows),
            {
                **keys,
                "kind": "value",
                "name": named,
                "step": steps,
                "time": np.array(times),
                "value": np.array(values),
            },
        )
    samples = data.columns["samples"]
    builders["samples"].add(len(samples["time"]), {**keys, **samples, **data.lists})
    if data.phases:
        builders["phases"].add(
            len(data.phases),
            {
                **keys,
                "phase": list(data.phases),
                "seconds": [seconds for seconds, _ in data.phases.values()],
                "count": [times for _, times in data.phases.values()],
            },
        )


def _write_cells(dataset: Path, opened: Sequence[tuple[Path, Plan]], slurm: Slurm, done: Collected) -> None:
    """Make the cells' rows of the plans at hand anew; the rows of other plans stay as they are."""
    summaries: dict[str, list[dict[str, Any]]] = {plan.id: [] for _, plan in opened}
    for part in sorted((dataset / _SUMMARIES).glob("part-*.parquet")):
        table = pq.read_table(part)
        for plan_id, text in zip(table["plan"].to_pylist(), table["summary"].to_pylist(), strict=True):
            if plan_id in summaries:
                summaries[plan_id].append(json.loads(text))
    path = _part(dataset, "cells", 0)
    rows: list[dict[str, Any]] = []
    if path.exists():
        rows = [row for row in pq.read_table(path, schema=SCHEMAS["cells"]).to_pylist() if row["plan"] not in summaries]
    for directory, plan in {plan.id: (directory, plan) for directory, plan in opened}.values():
        rows += attempt_rows(plan, summaries[plan.id], accounted_attempts(directory, plan, slurm))
    rows.sort(key=lambda row: (row["cluster"], row["study"], row["plan"], row["cell"], row["attempt_number"]))
    _write(path, pa.Table.from_pylist(rows, schema=SCHEMAS["cells"]))
    done.attempts = len(rows)
    for row in rows:
        if row["latest"]:
            done.outcomes[row["outcome"]] = done.outcomes.get(row["outcome"], 0) + 1
