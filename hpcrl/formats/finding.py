"""Find cells of a plan by the beginnings of their ids."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path

from hpcrl.errors import UsageError
from hpcrl.formats.plan import Cell, Job, Plan, every_generation, read_cells


def find_cell(directory: Path, plan: Plan, wanted: str, older: bool = False) -> tuple[Cell, Job, int]:
    """Find a cell by its id or an unambiguous beginning of it; return also its job and its index there.

    Args:
        older: also search the cells that only an older generation of the plan has.

    Raises:
        UsageError: there is none, or there are several.
    """
    return find_cells(directory, plan, [wanted], older)[0]


def find_cells(directory: Path, plan: Plan, wanted: Sequence[str], older: bool = False) -> list[tuple[Cell, Job, int]]:
    """Find several cells as :func:`find_cell` does, and read the plan's cells once."""
    found: dict[str, tuple[Cell, Job, int]] = {}
    for manifest in every_generation(directory, plan):
        missing = [text for text in wanted if text not in found]
        if not missing:
            break
        cells = sorted(enumerate(read_cells(directory, manifest)), key=lambda place: place[1].id)
        ids = [cell.id for _, cell in cells]
        for text in missing:
            first, end = bisect_left(ids, text), bisect_left(ids, text + chr(sys.maxunicode))
            if end - first > 1:
                raise UsageError(
                    f"{end - first} cells of {directory} begin with {text!r}: `hpcrl status` lists the cells"
                )
            if end == first:
                continue
            number, cell = cells[first]
            if manifest.generation != plan.generation and not older:
                raise UsageError(
                    f"cell {cell.id} of {directory} belongs to generation {manifest.generation} and is no longer in the study: "
                    "only `hpcrl logs` and `hpcrl cancel` accept it"
                )
            job = next(job for job in manifest.cell_jobs() if job.first <= number < job.first + job.count)
            found[text] = cell, job, number - job.first
    for text in wanted:
        if text not in found:
            raise UsageError(f"no cell of {directory} begins with {text!r}: `hpcrl status` lists the cells")
    return [found[text] for text in wanted]
