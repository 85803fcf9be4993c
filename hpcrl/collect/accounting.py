"""What the schedulers said of submitted attempts: asked through the ledgers of a plan's directories, and kept in the dataset.

One plan may be submitted from several directories: made again on another day or machine, or copied. Each directory has its
own ledger, and a later collect may not get all of them. So the dataset keeps the last answer about each attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from hpcrl.collect.arrays import column
from hpcrl.collect.parts import ACCOUNTING, SUMMARIES, read_part, write_part
from hpcrl.errors import HpcrlError
from hpcrl.formats.attempts import Progress, read_attempts, read_holder
from hpcrl.formats.lease import check_lease
from hpcrl.formats.ledger import FILE, DamagedLedger, Ledger
from hpcrl.formats.plan import Plan, cell_ids, find_job
from hpcrl.formats.processes import lives
from hpcrl.formats.queues import read_queues
from hpcrl.formats.submission import ELSEWHERE, Submission
from hpcrl.schedulers.evidence import breathing, is_new, now
from hpcrl.schedulers.interface import look
from hpcrl.schedulers.local.judging import holder_of, without_queue
from hpcrl.schedulers.slurm.judging import was_cancelled
from hpcrl.schedulers.states import CANCELLED, LIVE, LOST, UNKNOWN
from hpcrl.slurm.client import RUNNING, WAITING, JobState, Slurm, Usage

# States without an end: UNKNOWN, because the scheduler did not answer, and LOST, because it does not know the attempt.
_WITHOUT_END = LIVE | {UNKNOWN, LOST}
_NO_USAGE = Usage()
_TEXT, _F64, _I64 = pa.string(), pa.float64(), pa.int64()
_SCHEMA = pa.schema(
    [
        ("plan", _TEXT), ("cell", _TEXT), ("name", _TEXT),
        # The fields of Accounted, in their order.
        ("ledger", _TEXT), ("token", _TEXT), ("number", _I64), ("at", _F64), ("since", _F64), ("elsewhere", pa.bool_()),
        ("memory", _I64), ("time", _I64), ("attempt", _I64), ("partition", _TEXT), ("qos", _TEXT), ("key", _TEXT),
        ("state", _TEXT), ("exit_code", _TEXT), ("elapsed", _F64), ("cpu_seconds", _F64), ("memory_peak", _F64),
        ("energy", _F64), ("nodes", _TEXT), ("shared", pa.bool_()), ("unbegun", pa.bool_()),
    ]
)  # fmt: skip
# (cell, the attempt's name without its restart count)
AttemptKey = tuple[str, str]


@dataclass(frozen=True)
class Accounted:
    """One submitted attempt as the scheduler (or the local queue) last described it.

    Args:
        ledger: names its ledger by the newest submission in it.
        token, number, at, memory, time: of its submission, see :class:`hpcrl.formats.submission.Submission`.
        since: when it was submitted, but not before an earlier submission of its ledger: numbers order the submissions of a
            ledger, and this time those of several ledgers.
        elsewhere: its ledger belongs to a copy of the plan, which leaves the attempt to the original.
        attempt: the granted number.
        key: the Slurm job, as ``JOBID_INDEX``; None without Slurm.
        state: the scheduler's answer.
        exit_code, elapsed, cpu_seconds, memory_peak, energy, nodes: its accounting; None where it is of several cells.
        shared: the array task runs several cells, and `state` is that of the whole task.
        unbegun: this cell had not begun: in a shared task that runs, or that other cells had begun, or in one of which the
            scheduler says nothing.
    """

    ledger: str
    token: str
    number: int
    at: float
    since: float
    elsewhere: bool
    memory: int | None
    time: int | None
    attempt: int
    partition: str | None
    qos: str | None
    key: str | None
    state: str
    exit_code: str | None = None
    elapsed: float | None = None
    cpu_seconds: float | None = None
    memory_peak: float | None = None
    energy: float | None = None
    nodes: str | None = None
    shared: bool = False
    unbegun: bool = False

    @property
    def waits(self) -> bool:
        """Tell whether it waits, or may wait: nobody says what became of it, and it did not begin."""
        return self.state in WAITING or (self.unbegun and (self.state in RUNNING or self.state == UNKNOWN))

    @property
    def has_ended(self) -> bool:
        """Tell whether the scheduler knows how the attempt ended."""
        return self.state not in _WITHOUT_END


class Answers(NamedTuple):
    """What the ledgers of a plan know: the tokens of their submissions, every attempt that was handed over, which
    commands did not answer, and which ledgers could not be read.
    """

    tokens: set[str]
    attempts: dict[AttemptKey, Accounted]
    silent: dict[str, None]
    damaged: list[str]


def ask(directories: Sequence[Path], plan: Plan, slurm: Slurm) -> Answers:
    """Ask the scheduler or the local queue for every submitted attempt of a plan, through the ledgers of its directories.

    Copies of a directory know the same attempts. The ledger that knows more about an attempt counts.
    """
    every = Answers(set(), {}, {}, [])
    for directory in directories:
        answers = _of_ledger(directory, plan, slurm)
        every.tokens.update(answers.tokens)
        every.silent.update(answers.silent)
        every.damaged.extend(answers.damaged)
        for key, known in answers.attempts.items():
            before = every.attempts.get(key)
            if before is None or _certainty(known) >= _certainty(before):
                every.attempts[key] = known
    return every


def _certainty(known: Accounted) -> tuple[bool, bool, bool, bool]:
    return not known.elsewhere, known.has_ended, known.state not in (UNKNOWN, LOST), not known.unbegun


def _of_ledger(directory: Path, plan: Plan, slurm: Slurm) -> Answers:
    answers = Answers(set(), {}, {}, [])
    if not (directory / FILE).exists():
        return answers
    try:
        ledger = Ledger(directory)
    except DamagedLedger as error:  # the records are enough
        answers.damaged.append(error.what)
        return answers
    try:
        submissions = ledger.taken()
        view, cancelled = look(slurm, ledger, submissions), ledger.cancelled()
    finally:
        ledger.close()
    answers.silent.update(dict.fromkeys(view.notes() if view.unanswered else ()))
    ids = {job_id for jobs in view.jobs.values() for job_id in jobs if job_id}
    usage = slurm.usage(sorted(ids, key=int))
    jobs = {job.name: (plan, job) for job in plan.jobs}
    by_file: dict[str, list[str]] = {}
    progress = _progress(directory, submissions)
    queues = read_queues(directory)
    since, present = 0.0, now(directory)
    breathe: set[str] | None = None
    for submission in submissions:
        answers.tokens.add(submission.token)
        since = max(since, submission.at)
        if submission.job not in jobs:
            jobs[submission.job] = find_job(directory, submission.job)
        made, job = jobs[submission.job]
        if job.stage != "cells":
            continue
        if made.cells_file not in by_file:
            by_file[made.cells_file] = cell_ids(directory, made)
        cells = by_file[made.cells_file][job.first : job.first + job.count]
        by_id = view.jobs.get(submission.name) or {job_id: {} for job_id in submission.job_ids}
        alone = submission.cells_per_task == 1  # else Slurm's figures are totals of several cells
        unbegun = _unbegun(submission, cells, progress)
        unsure = view.unanswered or submission.state == ELSEWHERE or is_new(directory, submission, present)
        missing = UNKNOWN if unsure else LOST
        # Without these, an entry of a local queue that says "waits" or "runs" is no longer true.
        holds = submission.state in ("intent", ELSEWHERE) or queues.get(submission.token, False)
        for index, task, attempt in submission.places():
            for job_id, tasks in by_id.items():
                name = submission.attempt(index, job_id)
                state, begun = tasks.get(index) or JobState(job_id, missing), True
                if job_id and index not in tasks:
                    begun = bool(read_holder(directory, cells[task], attempt))
                    if not begun and was_cancelled(view, submission, index, cancelled):
                        state = state._replace(state=CANCELLED)
                elif not (job_id or holds) and state.state in LIVE:
                    holder = holder_of(directory, cells[task], attempt, submission)
                    begun = bool(holder)
                    state = state._replace(state=without_queue(state, begun and lives(holder)))
                if begun and state.state == LOST:
                    breathe = breathing(directory, present) if breathe is None else breathe
                    state = state._replace(state=UNKNOWN if cells[task] in breathe else LOST)
                waits = not begun and state.state == UNKNOWN
                used = usage.get(name, _NO_USAGE) if alone else _NO_USAGE
                answers.attempts[cells[task], name] = Accounted(
                    ledger=submissions[-1].token,
                    token=submission.token,
                    number=submission.number,
                    at=submission.at,
                    since=since,
                    elsewhere=submission.state == ELSEWHERE,
                    memory=submission.memory,
                    time=submission.time,
                    attempt=attempt,
                    partition=job.partition,
                    qos=job.qos,
                    key=name if job_id else None,
                    state=state.state,
                    exit_code=state.exit_code if alone else None,
                    elapsed=state.elapsed if alone else None,
                    cpu_seconds=used.cpu_seconds,
                    memory_peak=used.memory_peak,
                    energy=used.energy,
                    nodes=used.nodes,
                    shared=not alone,
                    unbegun=waits or (task in unbegun and (unbegun[task] or state.state in RUNNING)),
                )
    return answers


def _progress(directory: Path, submissions: Sequence[Submission]) -> Progress | None:
    """Read the fence if array tasks run several cells; None if it is not needed, or cannot be read."""
    if all(submission.cells_per_task == 1 for submission in submissions):
        return None
    try:
        return read_attempts(directory)
    except HpcrlError:
        return None


def _unbegun(submission: Submission, cells: Sequence[str], progress: Progress | None) -> dict[int, bool]:
    """Return the cells that have not begun, and whether others of their array tasks have; none if each has a task of its own."""
    if progress is None or submission.cells_per_task == 1:
        return {}
    places = list(submission.places())
    unbegun = {task: index for index, task, attempt in places if not progress.has_begun(cells[task], attempt)}
    begun = {index for index, task, _ in places if task not in unbegun}
    return {task: index in begun for task, index in unbegun.items()}


def read_kept(dataset: Path) -> pa.Table:
    """Read the answers that a dataset keeps."""
    path = dataset / SUMMARIES / ACCOUNTING
    return read_part(path, _SCHEMA) if path.exists() else pa.Table.from_batches([], schema=_SCHEMA)


def of_plans(kept: pa.Table, plans: Collection[str]) -> tuple[pa.Table, pa.Table]:
    """Return the kept answers about some plans, and the others."""
    if not len(kept):
        return kept, kept
    wanted = pc.is_in(kept["plan"], value_set=column(sorted(plans), _TEXT))
    return kept.filter(wanted), kept.filter(pc.invert(wanted))


def with_kept(answers: Answers, kept: pa.Table, cells: Collection[str]) -> dict[AttemptKey, Accounted]:
    """Return the present answers about a plan and, of attempts that no present ledger has, the kept ones.

    A ledger that was asked again counts more than what it said before. Two kept answers still win: how an attempt ended, if
    the scheduler no longer knows it; and that of the original, if only a copy of the plan was asked.

    Args:
        kept: the answers about this plan in the dataset.
        cells: the cells of the plan; attempts of others are left out.
    """
    attempts = dict(answers.attempts)
    if not len(kept):
        return attempts
    if all(known.state not in (UNKNOWN, LOST) and not known.elsewhere for known in attempts.values()):
        # As usual, nothing kept can win over the ledgers that were asked: only answers through other ledgers are needed.
        asked = pc.is_in(kept["token"], value_set=column(sorted(answers.tokens), _TEXT))
        kept = kept.filter(pc.invert(asked))
    for row in kept.drop_columns(["plan"]).to_pylist():
        key = row.pop("cell"), row.pop("name")
        before, latest = Accounted(**row), attempts.get(key)
        if key[0] not in cells:
            continue
        if latest is None:
            if before.token not in answers.tokens:
                attempts[key] = before
        elif latest.elsewhere and not before.elsewhere:
            attempts[key] = before
        elif latest.state in (UNKNOWN, LOST) and before.has_ended:
            attempts[key] = replace(before, ledger=latest.ledger)
    return attempts


def as_table(plan_id: str, attempts: Mapping[AttemptKey, Accounted]) -> pa.Table:
    """Return the answers about the attempts of a plan as they are kept."""
    keys = [[plan_id] * len(attempts), [cell for cell, _ in attempts], [name for _, name in attempts]]
    values = [[getattr(known, name) for known in attempts.values()] for name in _SCHEMA.names[len(keys) :]]
    made = [column(some, field.type) for some, field in zip([*keys, *values], _SCHEMA, strict=True)]
    return pa.Table.from_arrays(made, schema=_SCHEMA)


def write_kept(dataset: Path, tables: Sequence[pa.Table], lease: Path) -> None:
    """Keep these answers, and no others. The lease is that of :func:`hpcrl.collect.parts.write_part`."""
    path = dataset / SUMMARIES / ACCOUNTING
    table = pa.concat_tables(tables)
    if not len(table):
        check_lease(lease)
        path.unlink(missing_ok=True)
    else:
        order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in ("plan", "cell", "name")])
        write_part(path, table.take(order).combine_chunks(), lease)
