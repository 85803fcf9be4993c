"""The existing plan of a directory, and what its next generation keeps.

A job with the same script and cells keeps its name. A changed job gets a new name (``X-g2``). A name therefore always
means the same cells, for pending array tasks of older generations, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from hpcrl.errors import UsageError
from hpcrl.formats.plan import MANIFEST, Job, Plan, cell_ids, generations, read_plan

_SUFFIX = re.compile(r"-g[0-9]+$")
# Keys of a study about measuring. A change of them does not run completed cells again.
_MEASURED = (
    "precise_phases",
    "tensorboard",
    "sample_interval",
    "calibration_seconds",
    "idle_seconds",
    "profile_limit",
    "goal",
    "expect",
)


@dataclass(frozen=True)
class Before:
    """An existing plan directory: manifest, lines of the cells, files by name, and names of jobs of all generations."""

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
        """Tell whether a file may keep its name: it has this content, or it is missing and is written again."""
        data = content.encode() if isinstance(content, str) else content
        return self.files.get(name, data) == data

    def has_cells(self, job: Job, lines: list[str]) -> bool:
        return job.count == len(lines) and self.cells[job.first : job.first + job.count] == lines


@dataclass(frozen=True)
class Changes:
    """The changes from one generation to the next: numbers of cells, and the changed keys about measuring."""

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
                f"{' and '.join(self.measured)} {verb} from generation {generation - 1}: completed cells keep their measurements "
                "(`hpcrl submit --again` runs them again)"
            )
        return sentences


def read_before(directory: Path) -> Before | None:
    """Read the plan of a directory; None if there is none.

    Raises:
        UsageError: the plan is damaged, or has another format.
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
    taken = frozenset(job.name for generation in [plan, *older] for job in generation.jobs)
    return Before(directory, plan, manifest, cells, files, taken)


def check_same(before: Before, study: str, cluster: str, search: Mapping[str, Any] | None = None) -> None:
    """Check that the next generation has the same study, the same cluster and the same search, if it had one.

    Args:
        search: the search of the study without its number of trials, which may differ.

    Raises:
        UsageError: the study, the cluster or the search differs.
    """
    old = before.plan
    if (old.study.name, old.cluster.name) != (study, cluster):
        raise UsageError(
            f"{before.directory}: contains a plan of study {old.study.name} on {old.cluster.name}, not of study {study} on "
            f"{cluster}: choose another directory with -o"
        )
    earlier = old.study.given.get("search")
    if earlier and {**earlier, "trials": None} != {**(search or {}), "trials": None}:
        raise UsageError(
            f"{before.directory}: contains another search of study {study}, and trials of two searches under one name would be mixed: give the "
            "study another name, and plan into another directory with -o"
        )


def changes(before: Before, plan: Plan, cells: Iterable[str]) -> Changes:
    """Compare a new generation, with the ids of its cells, to the plan before it."""
    old = set(cell_ids(before.directory, before.plan))
    new = set(cells)
    measured = [name for name in _MEASURED if before.plan.study.given.get(name) != plan.study.given.get(name)]
    if before.plan.workload.get("workdir") != plan.workload.get("workdir"):
        measured.append("the commands' code")
    return Changes(len(new - old), len(new & old), len(old - new), measured)
