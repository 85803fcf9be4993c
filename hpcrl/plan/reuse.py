"""Which cells other plans or datasets have completed, so that they need not run again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from hpcrl.errors import UsageError
from hpcrl.formats.attempts import COMPLETED, read_attempts
from hpcrl.formats.plan import MANIFEST, RECORDS, read_plan

DATASET = "dataset.json"


def completed_cells(places: Sequence[Path]) -> dict[str, str]:
    """Return the ids of the cells that have a completed attempt in some plan directories or datasets, each with where.

    Raises:
        UsageError: a place is neither, or it is damaged.
    """
    found: dict[str, str] = {}
    for place in places:
        for cell in _of(place):
            found.setdefault(cell, str(place))
    return found


def _of(place: Path) -> Iterable[str]:
    if (place / MANIFEST).is_file():
        read_plan(place)  # its format is the one whose ids are known here
        return _marked(place) or _recorded(place)
    if (place / DATASET).is_file():
        return _in_dataset(place)
    raise UsageError(f"--reuse {place}: is neither a plan directory nor a dataset (no {MANIFEST}, no {DATASET})")


def _marked(plan: Path) -> set[str]:
    """Return the cells of which an attempt has completed on every rank, as the files beside its fence say."""
    said = read_attempts(plan)
    done = set().union(*said.completed().values())
    return done | {cell for cell, outcome in said.byhand.items() if outcome == COMPLETED}


def _recorded(plan: Path) -> set[str]:
    """Return the cells of which every rank of one attempt has a record that says completed."""
    records: dict[tuple[str, str], list[bool]] = {}
    ranks: dict[tuple[str, str], int] = {}
    for path in (plan / RECORDS).glob("*.rec"):
        if (said := _said(path)) is not None:
            attempt, ranks[attempt], completed = said
            records.setdefault(attempt, []).append(completed)
    return {attempt[0] for attempt, ends in records.items() if len(ends) >= ranks[attempt] and all(ends)}


def _said(path: Path) -> tuple[tuple[str, str], int, bool] | None:
    """Read of a record: its cell and attempt, how many ranks there are, and whether it says completed."""
    from hpcrl.formats.record import RecordError, read_frames

    attempt, ranks, completed = None, 1, False
    try:
        for frame in read_frames(path, frozenset({"header", "footer"})):
            facts = frame.payload
            if frame.kind == "footer":
                completed = facts.get("outcome") == "completed"
            else:
                attempt, ranks = (str(facts["cell"]), str(facts["attempt"])), int(facts["ranks"])
    except (RecordError, KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return None  # `collect` says what is wrong with it; here its cell runs again
    return (attempt, ranks, completed) if attempt else None


def _in_dataset(dataset: Path) -> set[str]:
    import pyarrow.parquet as pq

    from hpcrl.formats.tables import read_index

    read_index(dataset)
    done: set[str] = set()
    for part in sorted((dataset / "cells").glob("part-*.parquet")):
        table = pq.read_table(part, columns=["cell", "outcome"]).to_pydict()
        done |= {cell for cell, said in zip(table["cell"], table["outcome"], strict=True) if said == "completed"}
    return done
