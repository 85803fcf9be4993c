"""The plan that stands in a directory already, and what its next generation keeps of it.

A job keeps its name where its script and its cells are the same. Another one gets a new name (``X-g2``), so that a name
says for ever which cells a job has, whatever generation a pending array task belongs to.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from hpcrl.errors import UsageError
from hpcrl.formats.plan import MANIFEST, Job, Plan, cell_ids, generations, read_plan

_SUFFIX = re.compile(r"-g[0-9]+$")
# What a study says of measuring. A completed cell is not run again when it changes.
_MEASURED = ("precise_phases", "sample_interval", "calibration_seconds", "goal", "expect")


@dataclass(frozen=True)
class Before:
    """A plan directory as it stands: manifest, lines of the cells, files by name, and names of jobs of all generations."""

    directory: Path
    plan: Plan
    manifest: str
    cells: list[str]
    files: Mapping[str, bytes]
    taken: frozenset[str] = field(default_factory=frozenset)

    @property
    def next(self) -> int:
        return self.plan.generation + 1

    @cached_property
    def jobs(self) -> dict[str, Job]:
        """The jobs of the plan, by their names without the suffix of a generation."""
        return {_SUFFIX.sub("", job.name): job for job in self.plan.jobs}

    def keeps(self, name: str, content: str | bytes) -> bool:
        """Tell whether a file may keep its name: it has this very content, or it is gone and is written again."""
        data = content.encode() if isinstance(content, str) else content
        return self.files.get(name, data) == data

    def has_cells(self, job: Job, lines: list[str]) -> bool:
        return job.count == len(lines) and self.cells[job.first : job.first + job.count] == lines


@dataclass(frozen=True)
class Changes:
    """What a generation is to the one before it: numbers of cells, and what is measured in another way."""

    new: int
    kept: int
    gone: int
    measured: list[str]

    def in_words(self, generation: int) -> list[str]:
        sentences = [
            f"generation {generation}: {self.new} cell{'' if self.new == 1 else 's'} new, {self.kept} as before, {self.gone} no longer in the study"
        ]
        if self.measured:
            verb = "differ" if len(self.measured) > 1 else "differs"
            sentences.append(
                f"{' and '.join(self.measured)} {verb} from generation {generation - 1}: completed cells keep what they measured "
                "(`hpcrl submit --again` runs them anew)"
            )
        return sentences


def read_before(directory: Path) -> Before | None:
    """Read the plan of a directory; None where there is none.

    Raises:
        UsageError: it is damaged, or of another format.
    """
    if not (directory / MANIFEST).is_file():
        return None
    plan = read_plan(directory)
    older = [read_plan(directory, generation) for generation in generations(directory)]
    names = [plan.worker, *(job.script for job in plan.jobs)]
    files = {name: path.read_bytes() for name in names if (path := directory / name).is_file()}
    try:
        manifest = (directory / MANIFEST).read_text(encoding="utf-8")
        with (directory / plan.cells_file).open(encoding="utf-8", newline="\n") as file:
            cells = list(file)
    except OSError as error:
        raise UsageError(
            f"{directory / plan.cells_file}: cannot be read ({error.strerror}): plan into another directory with -o"
        ) from None
    taken = frozenset(job.name for each in [plan, *older] for job in each.jobs)
    return Before(directory, plan, manifest, cells, files, taken)


def check_same(before: Before, study: str, cluster: str) -> None:
    """Make sure that a plan is extended by its own study on its own cluster.

    Raises:
        UsageError: it is another one.
    """
    old = before.plan
    if (old.study["name"], old.cluster["name"]) != (study, cluster):
        raise UsageError(
            f"{before.directory}: holds a plan of study {old.study['name']} on {old.cluster['name']}, not of study {study} on "
            f"{cluster}: choose another directory with -o"
        )


def changes(before: Before, plan: Plan, cells: Iterable[str]) -> Changes:
    """Compare a new generation, with the ids of its cells, to the plan before it."""
    old = set(cell_ids(before.directory, before.plan))
    new = set(cells)
    measured = [name for name in _MEASURED if before.plan.study.get(name) != plan.study.get(name)]
    if before.plan.workload.get("workdir") != plan.workload.get("workdir"):
        measured.append("the commands' code")
    return Changes(len(new - old), len(new & old), len(old - new), measured)
