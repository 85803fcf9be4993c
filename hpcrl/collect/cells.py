"""The rows of the cells, made again from the summaries of records and the scheduler's present answers."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hpcrl.collect.arrays import column
from hpcrl.collect.attempts import Accounted, AttemptKey, accounted_attempts, attempt_rows
from hpcrl.collect.parts import SUMMARIES, SUMMARY_SCHEMA, part_file, read_part, write_part
from hpcrl.collect.reading import PROVENANCE
from hpcrl.errors import UsageError
from hpcrl.formats.plan import Cell, Plan
from hpcrl.formats.tables import SCHEMAS
from hpcrl.slurm.client import Slurm

CELLS = 5_000  # maximum number of cells whose rows are in memory at once


def write_cells(
    dataset: Path,
    opened: Sequence[tuple[Path, Plan]],
    cells: dict[str, dict[str, Cell]],
    slurm: Slurm,
) -> pa.Table:
    """Make the rows of the cells of these plans again, and keep the rows of other plans. Return all rows."""
    parts = sorted((dataset / SUMMARIES).glob("part-*.parquet"))
    everything = pa.concat_tables([_empty(SUMMARY_SCHEMA), *(read_part(part, SUMMARY_SCHEMA) for part in parts)])
    path = part_file(dataset, "cells", 0)
    pieces: dict[tuple[str, str, str], list[pa.Table]] = {}
    if path.exists():
        before = read_part(path, SCHEMAS["cells"])
        for plan_id in pc.unique(before["plan"].cast(pa.string())).to_pylist():
            piece = _of_plan(before, plan_id)
            pieces[piece["cluster"][0].as_py(), piece["study"][0].as_py(), plan_id] = [piece]
    for directory, plan in {plan.id: (directory, plan) for directory, plan in opened}.values():
        made = pieces[plan.cluster["name"], plan.study["name"], plan.id] = []
        try:
            accounted = accounted_attempts(directory, plan, slurm)
            for some, names in _by_cell(everything, plan.id, accounted):
                rows = attempt_rows(plan, cells[plan.id], some, {name: accounted[name] for name in names})
                made.append(_table(rows))
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            raise UsageError(
                f"{directory}: its cells or its ledger contain values of a wrong type ({type(error).__name__}: {error}): leave this plan out"
            ) from None
    ordered = [table for key in sorted(pieces) for table in pieces[key]]
    table = pa.concat_tables([_empty(SCHEMAS["cells"]), *ordered]).unify_dictionaries().combine_chunks()
    write_part(path, table)
    return table


def _table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    columns = []
    for each in SCHEMAS["cells"]:
        values = [row.get(each.name) for row in rows]
        try:
            columns.append(column(values, each.type))
        except OverflowError:  # a sum over ranks with values near 2^62
            fitting = [value if type(value) is int and abs(value) < 2**63 else None for value in values]
            columns.append(column(fitting, each.type))
    return pa.Table.from_arrays(columns, schema=SCHEMAS["cells"])


def _empty(schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches([], schema=schema)


def _of_plan(table: pa.Table, plan_id: str) -> pa.Table:
    return table.filter(_is_of_plan(table, plan_id))


def _is_of_plan(table: pa.Table, plan_id: str) -> pa.ChunkedArray:
    return pc.is_in(table["plan"].cast(pa.string()), value_set=column([plan_id], pa.string()))


def _by_cell(
    summaries: pa.Table, plan_id: str, accounted: Mapping[AttemptKey, Accounted]
) -> Iterator[tuple[list[dict[str, Any]], list[AttemptKey]]]:
    """Give the summaries and the accounted attempts of a plan, some cells at a time, in the order of their ids."""
    # Only positions are sorted, and only some cells' texts are taken out at once: all of them are large.
    places = pc.indices_nonzero(_is_of_plan(summaries, plan_id))
    keys = summaries.select(["cell", "record"]).take(places)
    order = pc.sort_indices(keys, sort_keys=[("cell", "ascending"), ("record", "ascending")])
    places, cells = places.take(order), keys["cell"].take(order).to_pylist()
    attempts: dict[str, list[AttemptKey]] = {}
    for name, each in accounted.items():
        attempts.setdefault(each.cell.id, []).append(name)
    every = sorted({*cells, *attempts})
    for first in range(0, len(every), CELLS):
        some = every[first : first + CELLS]
        start, end = bisect_left(cells, some[0]), bisect_right(cells, some[-1])
        chunk = summaries.take(places.slice(start, end - start))
        texts = [chunk[name].cast(pa.string()).to_pylist() for name in PROVENANCE]
        parts = json.loads(f"[{','.join(chunk['summary'].to_pylist())}]")  # in one call, which makes each name once
        rows = [part | dict(zip(PROVENANCE, words, strict=True)) for part, *words in zip(parts, *texts, strict=True)]
        yield rows, [name for cell in some for name in attempts.get(cell, ())]
