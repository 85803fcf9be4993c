"""Merge the records of plans into a dataset: incremental, in parallel, bounded in memory, deterministic.

New records are read in batches, each by one process, into one part of each table. The rows of cells are made again from
the summaries of records, which the dataset keeps, so no record is read twice.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hpcrl.collect.arrays import column
from hpcrl.collect.attempts import PlannedCell, planned_cells
from hpcrl.collect.batches import read_found, unforeseen
from hpcrl.collect.cells import write_cells
from hpcrl.collect.columns import SERIES
from hpcrl.collect.finding import Found, Refusal, find
from hpcrl.collect.holding import held_dataset
from hpcrl.collect.parts import SUMMARIES, SUMMARY_SCHEMA, part_file, read_part, write_part
from hpcrl.collect.reading import PROVENANCE, Reader, provenance_text
from hpcrl.collect.workers import workers
from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.files import open_of_stranger, write_atomically
from hpcrl.formats.lease import Say, check_lease
from hpcrl.formats.memory import without_gc
from hpcrl.formats.plan import Plan, check_cells, read_plan
from hpcrl.formats.record import UNMEASURED, RecordError
from hpcrl.formats.tables import INDEX, QUARANTINE, SCHEMAS, read_index
from hpcrl.slurm.client import Slurm

# Maximum records and bytes of one batch, which becomes one part; a single record may have more bytes.
BATCH_RECORDS = 2_000
BATCH_BYTES = 32 * 1024**2
# So many batches are read in another process even if it is only one: what they take adds nothing to the memory of this one.
MANY_BATCHES = 20
Report = Callable[[int, int], None]


@dataclass
class Collected:
    """The result of one call of :func:`collect`."""

    merged: int = 0
    unchanged: int = 0
    attempts: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    noted: int = 0
    unmeasured: int = 0
    quarantined: list[Refusal] = field(default_factory=list)


@without_gc()
def collect(
    plans: Sequence[Path],
    dataset: Path,
    slurm: Slurm,
    report: Report = lambda done, total: None,
    processes: int | None = None,
    say: Say = lambda line: None,
) -> Collected:
    """Merge the new records of some plans into a dataset, which is created if it does not exist.

    Records that cannot be read are not moved; they are listed with the reason in ``quarantine.json``, and counted. If
    another process collects into the dataset, this one waits for it.

    Args:
        processes: how many read at once; None: one per core, at most 8.
        say: gets a line that names the process for which this one waits, and one for each plan of which the scheduler
            did not say all.

    Raises:
        UsageError: a directory is not a plan, or the dataset has another format.
        HpcrlError: the dataset cannot be written.
    """
    opened = _opened(plans)
    with held_dataset(dataset, say) as (index, lease):
        return _collect(opened, dataset, index, lease, slurm, report, processes, say)


def _collect(
    opened: Sequence[tuple[Path, Plan]],
    dataset: Path,
    index: dict[str, Any],
    lease: Path,
    slurm: Slurm,
    report: Report,
    processes: int | None,
    say: Say,
) -> Collected:
    done = Collected()
    fresh, done.unchanged, conflicts = find(opened, index["records"])
    # Conflicts, and entries that are not files, were just searched again for these plans.
    here = {plan.id for _, plan in opened}
    known_bad = {
        refusal.record: refusal for refusal in _read_quarantine(dataset) if not (refusal.kind and refusal.plan in here)
    }
    bad: list[Refusal] = []
    reasons: dict[str, str] = {}  # one copy of each: most records of a kind have the same
    try:
        _forget(dataset, index, {record.name for record in fresh}, lease)
        cells = _cells(opened)
        batches, total, seen = deque(_batches(fresh)), len(fresh), 0
        del fresh  # here and below: the memory of 100,000 records counts
        numbers = range(index["parts"], index["parts"] + len(batches))
        index["parts"] += len(batches)
        lines = []  # of the index, one for each batch
        at_once = min(processes or _cores(), len(batches))
        alone = at_once < 2 and len(batches) < MANY_BATCHES
        with workers(0 if alone else at_once, dataset, _ids(cells), lease) as run:
            for number, refused in zip(numbers, run(list(zip(numbers, batches, strict=True))), strict=True):
                batch = batches.popleft()
                known = {}
                for record in batch:
                    name = record.name
                    known[name] = [record.size, record.time, None if name in refused else number]
                    known_bad.pop(name, None)
                    if name in refused:
                        bad.append(Refusal(*record[:3], reasons.setdefault(refused[name], refused[name])))
                lines.append(_inside(known).encode())
                done.merged += len(batch) - len(refused)
                seen += len(batch)
                report(seen, total)
        for _, plan in opened:
            _add_study(index["studies"], plan)
        lines.append(_inside(index.pop("records")).encode())
        done.quarantined = sorted([*known_bad.values(), *bad, *conflicts], key=lambda entry: entry[1:3])
        del known_bad, bad, reasons, conflicts
        pa.default_memory_pool().release_unused()
        rows = write_cells(dataset, opened, cells, slurm, lease, say)
        done.attempts, done.noted = len(rows), len(rows) - rows["notes"].null_count
        done.unmeasured = pc.sum(pc.match_substring(rows["notes"], UNMEASURED)).as_py() or 0
        latest = rows.filter(rows["latest"])["outcome"].cast(pa.string())
        done.outcomes = {entry["values"]: entry["counts"] for entry in pc.value_counts(latest).to_pylist()}
        del rows, latest
        pa.default_memory_pool().release_unused()
        mine = partial(check_lease, lease)
        write_atomically(dataset / QUARANTINE, _quarantine_text(done.quarantined), check=mine)
        write_atomically(dataset / INDEX, _index_text(index, lines), check=mine)
    except (OSError, pa.ArrowException) as error:
        why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error
        raise HpcrlError(
            f"{dataset}: cannot be written: {why}: the records merged before are kept; collect again"
        ) from None
    return done


def check(plans: Sequence[Path], dataset: Path) -> Collected:
    """Say what :func:`collect` would merge and what it would quarantine, and write nothing.

    Raises:
        UsageError: a directory is not a plan, or the dataset has another format.
    """
    opened = _opened(plans)
    known = read_index(dataset)["records"] if (dataset / INDEX).exists() else {}
    done = Collected()
    cells = _ids(_cells(opened))
    reader = Reader()
    fresh, done.unchanged, conflicts = find(opened, known)
    for record in fresh:
        try:
            header = read_found(record, cells, reader).header
            for name in PROVENANCE:
                provenance_text(name, header.get(name))
            done.merged += 1
        except RecordError as error:
            done.quarantined.append(Refusal(*record[:3], str(error)))
        except Exception as error:
            done.quarantined.append(Refusal(*record[:3], unforeseen(error)))
    done.quarantined += conflicts
    return done


def _add_study(studies: dict[str, Any], plan: Plan) -> None:
    """Add what reports need of a plan's study. Searches of one name have all parameters of their spaces.

    `asked` has the cores and GPUs of its cells, also of those that have no place on the cluster, `planned` the number of a plan's cells.
    """
    name, given = plan.study.name, plan.study.given
    facts = {key: given.get(key) for key in ("title", "goal", "paper", "score", "better", "scaling", "search")}
    known = studies.get(name) or {}
    earlier = known.get("search")
    if earlier and facts["search"]:
        facts["search"] = {**facts["search"], "space": {**earlier["space"], **facts["search"]["space"]}}
    cells = [*(job.asked for job in plan.cell_jobs()), *(group.asked for group in plan.unplaced)]
    asked = {(size.cores, size.gpus) for size in cells}
    asked |= {(size["cores"], size["gpus"]) for size in known.get("asked") or ()}
    planned = {**(known.get("planned") or {}), plan.id: sum(job.count for job in plan.cell_jobs())}
    asked_for = [{"cores": cores, "gpus": gpus} for cores, gpus in sorted(asked)]
    studies[name] = facts | {"asked": asked_for, "planned": planned}


def _inside(facts: dict[str, Any]) -> str:
    """Return a JSON object without its braces."""
    return json.dumps(facts, sort_keys=True)[1:-1]


def _quarantine_text(quarantined: list[Refusal]) -> Iterator[bytes]:
    yield b"[\n"
    for number, refusal in enumerate(quarantined):
        yield b",\n" * bool(number) + json.dumps(refusal.entry).encode()
    yield b"\n]\n"


def _index_text(index: dict[str, Any], records: list[bytes]) -> Iterator[bytes]:
    """Give the text of the index; each of `records` has the records of some batches, and may be empty."""
    yield f'{{{_inside(index)}, "records": {{'.encode()
    for number, batch in enumerate(filter(None, records)):
        yield b", " * bool(number) + batch
    yield b"}}\n"


def _opened(plans: Sequence[Path]) -> list[tuple[Path, Plan]]:
    """Open each plan once; the order of the plans changes nothing."""
    directories = {path.resolve(): path for path in plans}
    opened = [(directory, read_plan(directory)) for directory in directories.values()]
    for directory, plan in opened:
        check_cells(directory, plan)
    return sorted(opened, key=lambda pair: (pair[1].cluster.name, pair[1].study.name, pair[1].id, pair[0]))


def _cells(opened: Sequence[tuple[Path, Plan]]) -> dict[str, dict[str, PlannedCell]]:
    cells: dict[str, dict[str, PlannedCell]] = {}
    for directory, plan in opened:
        known = cells.setdefault(plan.id, {})
        known |= {cell.id: cell for cell in planned_cells(directory, plan) if cell.id not in known}
    return cells


def _ids(cells: dict[str, dict[str, PlannedCell]]) -> dict[str, set[str]]:
    return {plan: set(some) for plan, some in cells.items()}


def _batches(fresh: list[Found]) -> Iterator[list[Found]]:
    batch: list[Found] = []
    size = 0
    for record in fresh:
        if batch and (len(batch) == BATCH_RECORDS or size + record.size > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += record.size
    if batch:
        yield batch


def _cores() -> int:
    return min(8, len(os.sched_getaffinity(0)))


def _read_quarantine(dataset: Path) -> list[Refusal]:
    path = dataset / QUARANTINE
    try:
        with open_of_stranger(path) as file:
            entries = json.load(file)
        for entry in entries:
            if not all(type(entry[name]) is str for name in ("record", "file", "reason")):
                raise ValueError("an entry is not text")
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read ({error}): collect into a new directory") from None
    return [Refusal.of(entry) for entry in entries]


def _forget(dataset: Path, index: dict[str, Any], names: set[str], lease: Path) -> None:
    """Remove the rows of records that have grown from the parts that contain them."""
    stale: dict[int, set[str]] = {}
    for name in names & set(index["records"]):
        number = index["records"].pop(name)[2]
        if number is not None:
            stale.setdefault(number, set()).add(name)
    for number, gone in stale.items():
        known = read_part(part_file(dataset, SUMMARIES, number), SUMMARY_SCHEMA)
        keep = []
        lost = set()
        for row in known.select(["plan", "record", "summary"]).to_pylist():
            keep.append(f"{row['plan']}/{row['record']}" not in gone)
            if not keep[-1]:
                head = json.loads(row["summary"])["header"]
                lost.add((row["plan"], head["cell"], head["attempt"], head["rank"]))
        for table in SERIES:
            if not part_file(dataset, table, number).exists():  # of a table that an older hpcrl did not have
                continue
            rows = read_part(part_file(dataset, table, number), SCHEMAS[table])
            keys = zip(*(rows[name].to_pylist() for name in ("plan", "cell", "attempt", "rank")), strict=True)
            write_part(
                part_file(dataset, table, number),
                rows.filter(column([key not in lost for key in keys], pa.bool_())),
                lease,
            )
        write_part(part_file(dataset, SUMMARIES, number), known.filter(column(keep, pa.bool_())), lease)
