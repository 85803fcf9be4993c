"""The differences of two plans."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from hpcrl.formats.labels import label
from hpcrl.formats.plan import Cell, Plan, read_cells, read_plan


@dataclass(frozen=True)
class Difference:
    """Cells, environments, directories of code and scripts that only one plan has; changed scripts as a unified diff."""

    only_in_first: list[str]
    only_in_second: list[str]
    environments: list[str]
    scripts: list[str]

    def __bool__(self) -> bool:
        return bool(self.only_in_first or self.only_in_second or self.environments or self.scripts)


def diff_plans(first: Path, second: Path) -> Difference:
    """Compare two plan directories by their cells, environments and scripts."""
    plans = read_plan(first), read_plan(second)
    cells = [{cell.id: cell for cell in read_cells(directory)} for directory in (first, second)]
    keys = [{environment.key for environment in plan.environments} | _code(plan) for plan in plans]
    return Difference(
        [_name(cell) for key, cell in cells[0].items() if key not in cells[1]],
        [_name(cell) for key, cell in cells[1].items() if key not in cells[0]],
        [f"- {key}" for key in sorted(keys[0] - keys[1])] + [f"+ {key}" for key in sorted(keys[1] - keys[0])],
        _scripts(first, second, *plans),
    )


def _code(plan: Plan) -> set[str]:
    """Return the directory of the commands' code; the name of a copy contains a digest of its content."""
    return {place} if (place := plan.workload.get("workdir")) else set()


def _name(cell: Cell) -> str:
    asked = ", ".join(f"{key} {value}" for key, value in cell.resources.items())
    return f"{cell.id} {label(cell.config)} ({asked})"


def _scripts(first: Path, second: Path, *plans: Plan) -> list[str]:
    names = sorted({job.script for plan in plans for job in plan.jobs})
    out: list[str] = []
    for name in names:
        there = [base for base in (first, second) if (base / name).exists()]
        if len(there) < 2:
            out += [f"only in {base}: {name}" for base in there]
            continue
        before, after = ((base / name).read_text().splitlines() for base in there)
        out += difflib.unified_diff(
            before, after, fromfile=f"{first}/{name}", tofile=f"{second}/{name}", lineterm="", n=1
        )
    return out
