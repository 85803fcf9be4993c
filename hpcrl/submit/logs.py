"""The log of a cell: where it is, and whether more will come."""

from __future__ import annotations

from pathlib import Path

from hpcrl.errors import UsageError
from hpcrl.formats.finding import find_cell
from hpcrl.formats.plan import read_plan
from hpcrl.schedulers.states import LIVE, NEVER, UNSETTLED
from hpcrl.slurm.client import WAITING, Slurm
from hpcrl.submit.status import surveyed


def find_log(directory: Path, cell: str, slurm: Slurm) -> Path:
    """Return the log of a cell's newest attempt.

    Raises:
        UsageError: there is no such cell, or it has not run yet.
    """
    path, state = look_for_log(directory, cell, slurm)
    if path is None:
        raise UsageError(f"cell {cell}: has no log yet: {state}")
    return path


def look_for_log(directory: Path, cell: str, slurm: Slurm) -> tuple[Path | None, str]:
    """Return the log of a cell's newest attempt (None if there is none yet), and the cell's state.

    Raises:
        UsageError: there is no such cell, or somebody removed the log.
    """
    plan = read_plan(directory)
    found, _, _ = find_cell(directory, plan, cell, older=True)
    status = surveyed(directory, plan, slurm).units.get(found.id)
    log = status.log if status else None
    if status is None or log is None:
        return None, status.state if status else NEVER
    if (directory / log).is_file():
        return directory / log, status.state
    if status.state in WAITING:
        return None, status.state
    raise UsageError(f"{directory / log}: the log of cell {found.id} is gone ({status.state.lower()}): was it removed?")


def may_grow(state: str) -> bool:
    """Tell whether a cell in this state may write more, or begin."""
    return state in LIVE or state in UNSETTLED
