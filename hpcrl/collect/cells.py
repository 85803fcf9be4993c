"""The rows of the cells, made again from the summaries of records and the scheduler's present answers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hpcrl.collect.accounting import (
    Accounted,
    AttemptKey,
    as_table,
    ask,
    of_plans,
    read_kept,
    with_kept,
    write_kept,
)
from hpcrl.collect.arrays import column
from hpcrl.collect.attempts import (
    PlannedCell,
    age_of,
    attempt_of,
    attempt_rows,
    newest_restarts,
    rows_without_records,
)
from hpcrl.collect.parts import Summaries, part_file, read_part, write_part
from hpcrl.errors import UsageError, count
from hpcrl.formats.lease import Say
from hpcrl.formats.plan import Plan
from hpcrl.formats.tables import SCHEMAS
from hpcrl.profilers import is_extra
from hpcrl.schedulers.states import UNKNOWN
from hpcrl.slurm.client import Slurm

CELLS = 500  # maximum number of cells whose rows are in memory at once
RECORDS = 500  # maximum number of records whose summaries are in memory at once, but for attempts of more ranks


def write_cells(
    dataset: Path,
    opened: Sequence[tuple[Path, Plan]],
    cells: dict[str, dict[str, PlannedCell]],
    slurm: Slurm,
    lease: Path,
    say: Say,
) -> pa.Table:
    """Make the rows of the cells of these plans again, and keep the rows of other plans. Return all rows.

    One plan may have several directories. What the schedulers said of its attempts is kept, too, for a later call that does
    not get all of them. The lease is that of :func:`hpcrl.collect.parts.write_part`.
    """
    path = part_file(dataset, "cells", 0)
    pieces: dict[tuple[str, str, str], list[pa.Table]] = {}
    directories: dict[str, list[Path]] = {}
    for directory, plan in opened:
        directories.setdefault(plan.id, []).append(directory)
    if path.exists():
        before = read_part(path, SCHEMAS["cells"])
        for plan_id in pc.unique(before["plan"].cast(pa.string())).to_pylist():
            if plan_id not in directories:
                piece = _of_plan(before, plan_id)
                pieces[piece["cluster"][0].as_py(), piece["study"][0].as_py(), plan_id] = [piece]
        del before
    kept, others = of_plans(read_kept(dataset), directories)
    kept_again = [others]
    with Summaries(dataset) as summaries:
        for plan in {plan.id: plan for _, plan in opened}.values():
            made = pieces[plan.cluster.name, plan.study.name, plan.id] = []
            own_cells, own_directories = cells[plan.id], directories[plan.id]
            try:
                answers = ask(own_directories, plan, slurm)
                accounted = with_kept(answers, of_plans(kept, [plan.id])[0], own_cells)
                for places, names in _by_cell(summaries.known, plan.id, accounted):
                    own = {name: accounted[name] for name in names}
                    made.append(_rows(plan, own_cells, summaries, places, own))
                kept_again.append(as_table(plan.id, accounted))
                for what in answers.damaged:
                    say(
                        f"{what}: records are collected without what the scheduler says. `hpcrl submit` rebuilds the ledger"
                    )
                if answers.silent and (number := _unsettled(made, accounted.values())):
                    say(
                        f"{'; '.join(answers.silent)}: what became of {count(number, 'attempt')} of {plan.study.name} is not known: "
                        "collect again when it answers"
                    )
            except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
                raise UsageError(
                    f"{', '.join(map(str, own_directories))}: its cells or its ledger contain values of a wrong type "
                    f"({type(error).__name__}: {error}): leave this plan out"
                ) from None
            del accounted
    write_kept(dataset, kept_again, lease)
    del kept_again, kept, others
    ordered = [table for key in sorted(pieces) for table in pieces[key]] or [_empty(SCHEMAS["cells"])]
    table = pa.concat_tables(ordered).unify_dictionaries().combine_chunks()
    write_part(path, table, lease)
    return table


def _unsettled(rows: Sequence[pa.Table], accounted: Iterable[Accounted]) -> int:
    """Count the attempts of which nobody knows whether they have ended. Those that have not begun have no row."""
    known = [(table["outcome"].cast(pa.string()), table["slurm_state"].cast(pa.string())) for table in rows]
    flags = [pc.and_(pc.equal(outcome, "running"), pc.equal(state, UNKNOWN)) for outcome, state in known]
    return sum(pc.sum(some).as_py() or 0 for some in flags) + sum(
        attempt.unbegun and attempt.state == UNKNOWN for attempt in accounted
    )


def _rows(
    plan: Plan,
    cells: Mapping[str, PlannedCell],
    summaries: Summaries,
    places: pa.Array,
    accounted: Mapping[AttemptKey, Accounted],
) -> pa.Table:
    """Make the rows of some cells from their summaries, oldest attempt of a cell first, and number the attempts."""
    if len(places) <= RECORDS:
        records = summaries.records(places)
        chunks: Iterable[list[dict[str, Any]]] = [records]
        newest = newest_restarts(map(attempt_of, records))
    else:  # a cell of very many attempts: they are read twice, so that a few are in memory at once
        keys = sorted(
            (*attempt_of(record), place)
            for some in _slices(places)
            for record, place in zip(summaries.records(some), some.to_pylist(), strict=True)
        )
        newest = newest_restarts((cell, attempt) for cell, attempt, _ in keys)
        chunks = (summaries.records(some) for some in _whole_attempts(keys))
    tables, ages, extra = [], [], []
    for rows in chain(
        (attempt_rows(plan, cells, records, accounted, newest) for records in chunks),
        [rows_without_records(plan, cells, accounted, newest)],
    ):
        ages += [age_of(row, accounted) for row in rows]
        extra += [is_extra(row.get("profile"), row["config"]) for row in rows]
        tables.append(_table(rows))
        pa.default_memory_pool().release_unused()
    order = sorted(range(len(ages)), key=ages.__getitem__)
    numbers: list[int] = []
    latest: list[bool] = []
    for _, group in groupby(((ages[place][0], extra[place]) for place in order), key=lambda pair: pair[0]):
        are_extra = [flag for _, flag in group]
        last = max((number for number, flag in enumerate(are_extra) if not flag), default=len(are_extra) - 1)
        numbers += range(1, len(are_extra) + 1)
        latest += [number == last for number in range(len(are_extra))]
    table = pa.concat_tables(tables).unify_dictionaries()
    del tables, ages, extra
    counted: dict[str, list[Any]] = {"attempt_number": numbers, "latest": latest}
    places, taken = column(order, pa.int64()), []
    for field in SCHEMAS["cells"]:  # one by one, so that only one is in memory twice
        taken.append(
            column(counted[field.name], field.type) if field.name in counted else table[field.name].take(places)
        )
        table = table.drop_columns(field.name)
    pa.default_memory_pool().release_unused()
    return pa.Table.from_arrays(taken, schema=SCHEMAS["cells"])


def _slices(places: pa.Array) -> Iterator[pa.Array]:
    return (places.slice(start, RECORDS) for start in range(0, len(places), RECORDS))


def _whole_attempts(keys: Sequence[tuple[str, str, int]]) -> Iterator[pa.Array]:
    """Give the places of sorted (cell, attempt, place), some at a time, those of an attempt together."""
    places: list[int] = []
    for _, group in groupby(keys, key=lambda key: key[:2]):
        own = [place for _, _, place in group]
        if places and len(places) + len(own) > RECORDS:
            yield column(places, pa.int64())
            places = []
        places += own
    yield column(places, pa.int64())


def _table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    columns = []
    for field in SCHEMAS["cells"]:
        values = [row.get(field.name) for row in rows]
        try:
            columns.append(column(values, field.type))
        except OverflowError:  # a sum over ranks with values near 2^62
            fitting = [value if type(value) is int and abs(value) < 2**63 else None for value in values]
            columns.append(column(fitting, field.type))
    return pa.Table.from_arrays(columns, schema=SCHEMAS["cells"])


def _empty(schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches([], schema=schema)


def _of_plan(table: pa.Table, plan_id: str) -> pa.Table:
    return table.filter(_is_of_plan(table, plan_id))


def _is_of_plan(table: pa.Table, plan_id: str) -> pa.ChunkedArray:
    return pc.is_in(table["plan"].cast(pa.string()), value_set=column([plan_id], pa.string()))


def _by_cell(
    summaries: pa.Table, plan_id: str, accounted: Mapping[AttemptKey, Accounted]
) -> Iterator[tuple[pa.Array, list[AttemptKey]]]:
    """Give the places of the summaries and the accounted attempts of a plan, some cells at a time, in the order of their ids."""
    places = pc.indices_nonzero(_is_of_plan(summaries, plan_id))
    keys = summaries.select(["cell", "record"]).take(places)
    order = pc.sort_indices(keys, sort_keys=[("cell", "ascending"), ("record", "ascending")])
    places, cells = places.take(order), keys["cell"].take(order).to_pylist()
    attempts: dict[str, list[AttemptKey]] = {}
    for name in accounted:
        attempts.setdefault(name[0], []).append(name)
    every = sorted({*cells, *attempts})
    first = 0
    while first < len(every):
        start = bisect_left(cells, every[first])
        last = min(first + CELLS, len(every))
        if start + RECORDS < len(cells):  # as many whole cells as RECORDS allows, one at least
            last = max(first + 1, min(last, bisect_left(every, cells[start + RECORDS])))
        end = bisect_right(cells, every[last - 1])
        yield places.slice(start, end - start), [name for cell in every[first:last] for name in attempts.get(cell, ())]
        first = last
