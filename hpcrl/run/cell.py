"""A cell of a plan is prepared to run: its environment, threads, variables and GPUs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.attempts import Start, end_attempt
from hpcrl.formats.plan import Cell, Job, Plan, read_cells
from hpcrl.placeholders import fill
from hpcrl.profilers import KEY, NONE, window_of
from hpcrl.run.allocation import Allocation, limit_threads, record_of
from hpcrl.run.search import Trial, begin
from hpcrl.run.standing import lacks


def cell_of(directory: Path, job: Job, task: int) -> Cell:
    """Return the cell of an array index.

    Raises:
        UsageError: the job has no such index.
    """
    if not 0 <= task < job.count:
        raise UsageError(f"job {job.name}: expected a task from 0 to {job.count - 1}, got {task}")
    for cell in read_cells(directory, replace(job, first=job.first + task, count=1)):
        return cell
    raise UsageError(f"{directory}: has fewer cells than job {job.name} needs: make the plan again")


def run_cell(
    directory: Path,
    plan: Plan,
    job: Job,
    cell: Cell,
    allocation: Allocation,
    start: Start,
    interval: float = 1.0,
    profiler: str | None = None,
    window: Mapping[str, int | None] | None = None,
) -> int:
    """Run a cell under telemetry, write its record and return the exit code of this rank.

    The caller has already taken the attempt (:func:`hpcrl.formats.attempts.take_attempt`).

    Args:
        profiler: looks at the cell instead of its own. The attempt is then an extra one, which does not complete the cell.
        window: the steps at which it looks, instead of the cell's own.
    """
    standing = plan.study.surroundings is not None and not plan.runs_command
    _check_environment(job, cell, plan.frameworks_of(cell.config) if standing else None)
    limit_threads(cell.asked.cpus, allocation.local_rank)
    trial: Trial | HpcrlError | None
    try:
        trial = begin(directory, plan, cell)
    except HpcrlError as error:  # an outcome, for the record
        trial = error
    if isinstance(trial, Trial):
        cell = replace(cell, config=cell.config | trial.values)
    values = {**cell.config, **cell.resources, "cell": cell.id}
    of_hpcrl = _set_variables({name: fill(text, values) for name, text in plan.workload.get("env", {}).items()})
    # Imported here, because NumPy reads the number of threads at its import.
    from hpcrl.run.attempt import RankOfAttempt

    extra = is_extra(cell, profiler, window)
    given = {name: steps for name, steps in (window or {}).items() if steps is not None}
    seen = window_of({**cell.config, **given})
    rank = RankOfAttempt(
        directory, plan, job, cell, allocation, start, of_hpcrl, trial, profiler or _own_profiler(cell), seen, extra
    )
    return rank.run(interval)


def _set_variables(wanted: dict[str, str]) -> dict[str, str | None]:
    """Set a study's variables. Return their old values, for hpcrl's own processes.

    PYTHONPATH is extended, not replaced, because commands find `hpcrl` there.
    """
    before = {name: os.environ.get(name) for name in wanted if not name.startswith("CUDA_")}
    if (python := wanted.get("PYTHONPATH")) and (there := os.environ.get("PYTHONPATH")):
        wanted = wanted | {"PYTHONPATH": f"{python}{os.pathsep}{there}"}
    os.environ.update(wanted)
    return before


def end_killed_rank(
    directory: Path, cell: Cell, allocation: Allocation, start: Start, extra: bool, facts: dict[str, Any]
) -> None:
    """Write the last frame of a rank that was killed, and how its attempt ended, if it had begun its record.

    Args:
        extra: the attempt is one that does not complete the cell.
    """
    from hpcrl.formats.record import end_record

    print(f"hpcrl: rank {allocation.rank} was {facts['reason']}", file=sys.stderr, flush=True)
    if end_record(record_of(directory, cell, allocation), facts) and not extra:
        end_attempt(directory, start, facts["outcome"], allocation.rank, allocation.ranks)


def is_extra(cell: Cell, profiler: str | None, window: Mapping[str, int | None] | None = None) -> bool:
    """Tell whether a profiler or its steps are not the cell's own: an attempt under it does not complete the cell."""
    others = any(steps not in (None, cell.config.get(name, 0)) for name, steps in (window or {}).items())
    return others or profiler not in (None, _own_profiler(cell))


def _own_profiler(cell: Cell) -> str | None:
    return None if cell.config.get(KEY) in (None, NONE) else str(cell.config[KEY])


def _check_environment(job: Job, cell: Cell, needed: Sequence[str] | None) -> None:
    """Check that the environment is the one that the plan locked.

    Args:
        needed: the modules that a user's own environment must have for the cell; None: it is an environment of the plan.

    Raises:
        UsageError: it is another environment, or a module is missing.
    """
    if needed is not None:
        if wrong := lacks(needed):
            raise UsageError(wrong)
        return
    path = os.environ.get("HPCRL_ENV")
    if path is None:
        return
    try:
        key = json.loads((Path(path) / "hpcrl-environment.json").read_text())["key"]
    except (OSError, ValueError, KeyError):
        key = "an environment that hpcrl did not build"
    if key != (wanted := job.environment or cell.environment):
        raise UsageError(
            f"{path}: expected environment {wanted} (the plan's lock), got {key}: run hpcrl env create --plan PLAN"
        )
