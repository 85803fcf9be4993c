"""Find the cells that other plans or datasets have completed, so that they do not run again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from hpcrl.errors import UsageError
from hpcrl.formats.attempts import COMPLETED, read_attempts
from hpcrl.formats.plan import MANIFEST, RECORDS, read_plan
from hpcrl.profilers import is_extra

DATASET = "dataset.json"


def completed_cells(places: Sequence[Path]) -> dict[str, str]:
    """Return the ids of the cells with a completed attempt in plan directories or datasets, each with its place.

    Raises:
        UsageError: a place is neither a plan nor a dataset, or is damaged.
    """
    completed: dict[str, str] = {}
    for place in places:
        for cell in _of(place):
            completed.setdefault(cell, str(place))
    return completed


def _of(place: Path) -> Iterable[str]:
    if (place / MANIFEST).is_file():
        read_plan(place)  # checks that its format has the same ids
        return _marked(place) or _recorded(place)
    if (place / DATASET).is_file():
        return _in_dataset(place)
    raise UsageError(
        f"--reuse {place}: expected a plan directory or a dataset, got neither {MANIFEST} nor {DATASET} in it"
    )


def _marked(plan: Path) -> set[str]:
    """Return the cells with an attempt that completed on every rank, by the files beside its fence."""
    said = read_attempts(plan)
    done = set().union(*said.completed().values())
    return done | {cell for cell, outcome in said.byhand.items() if outcome == COMPLETED}


def _recorded(plan: Path) -> set[str]:
    """Return the cells with an attempt whose ranks all have a completed record."""
    records: dict[tuple[str, str], list[bool]] = {}
    ranks: dict[tuple[str, str], int] = {}
    for path in (plan / RECORDS).glob("*.rec"):
        if (said := _said(path)) is not None:
            attempt, ranks[attempt], completed = said
            records.setdefault(attempt, []).append(completed)
    return {attempt[0] for attempt, ends in records.items() if len(ends) >= ranks[attempt] and all(ends)}


def _said(path: Path) -> tuple[tuple[str, str], int, bool] | None:
    """Read the cell, the attempt and the number of ranks of a record, and whether it is completed."""
    from hpcrl.formats.record import RecordError, read_frames

    attempt, ranks, completed = None, 1, False
    try:
        for frame in read_frames(path, frozenset({"header", "footer"})):
            facts = frame.payload
            if frame.kind == "footer":
                completed = facts.get("outcome") == "completed"
            else:
                if is_extra(facts.get("profile"), json.dumps(facts["config"])):
                    return None
                attempt, ranks = (str(facts["cell"]), str(facts["attempt"])), int(facts["ranks"])
    except (RecordError, KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return None  # `collect` reports the fault; here its cell runs again
    return (attempt, ranks, completed) if attempt else None


def _in_dataset(dataset: Path) -> set[str]:
    import pyarrow.parquet as pq

    from hpcrl.formats.damage import reading
    from hpcrl.formats.tables import read_index

    read_index(dataset)
    done: set[str] = set()
    for part in sorted((dataset / "cells").glob("part-*.parquet")):
        with reading(part):
            file = pq.ParquetFile(part)
            names = [name for name in ("cell", "outcome", "config", "profile") if name in file.schema_arrow.names]
            rows = file.read(columns=names)
        for row in rows.to_pylist():
            if row["outcome"] == "completed" and not is_extra(row.get("profile"), row["config"]):
                done.add(row["cell"])
    return done
