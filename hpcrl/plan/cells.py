"""The cells of a plan: their ids, and their lines in the file of cells."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hpcrl.errors import UsageError
from hpcrl.formats.facts import LIMITS
from hpcrl.formats.labels import label
from hpcrl.formats.plan import Cell
from hpcrl.plan.expand import cell_ids
from hpcrl.plan.pack import Group, as_data
from hpcrl.plan.placement import Placement
from hpcrl.spec.resources import Resources
from hpcrl.spec.study import Study


@dataclass(frozen=True)
class Batch:
    """Cells that are equal for Slurm, with their ids."""

    environment: str
    placement: Placement
    resources: Resources
    ids: list[str]
    configs: list[dict[str, Any]]
    wave: int = 0

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the file of cells, one for each cell."""
        line = _line_writer(as_data(self.resources), self.environment)
        return list(map(line, self.ids, self.configs))

    def without(self, completed: Container[str]) -> Batch:
        kept = [index for index, cell in enumerate(self.ids) if cell not in completed]
        ids, configs = [self.ids[index] for index in kept], [self.configs[index] for index in kept]
        return Batch(self.environment, self.placement, self.resources, ids, configs, self.wave)


def identified(study: Study, groups: Sequence[Group]) -> list[Batch]:
    """Give every point of the groups the id of its cell."""
    workload = study.workload.model_dump(mode="json", exclude_none=True)
    if study.stops_at_goal():
        workload["goal"] = study.goal  # with it the goal changes what is computed, not only what is measured
    if study.search:
        workload["search"] = study.search.identity()
    batches = []
    for group in groups:
        cell_id = cell_ids(workload, as_data(group.resources), group.environment, study.axes)
        configs = [point.config for point in group.points]
        ids = list(map(cell_id, configs))
        batches.append(Batch(group.environment, group.placement, group.resources, ids, configs, group.wave))
    return batches


def check_ids(study: Study, batches: Sequence[Batch]) -> None:
    """Check that all ids are different.

    Raises:
        UsageError: two cells compute the same.
    """
    if len({cell for batch in batches for cell in batch.ids}) == sum(len(batch.ids) for batch in batches):
        return
    first: dict[str, Batch] = {}
    for batch in batches:
        for cell, config in zip(batch.ids, batch.configs, strict=True):
            other = first.get(cell)
            if other is None:
                first[cell] = batch
                continue
            asked = batch.resources, other.resources
            differing = " and ".join(
                name for name in LIMITS if len({getattr(resources, name) for resources in asked}) > 1
            )
            if differing:
                raise UsageError(
                    f"study {study.name}: two cells ({label(config)}) differ only in {differing}, which does not enter a cell's id: make "
                    f"{differing} an axis, or remove one of the two cells"
                )
            raise UsageError(
                f"study {study.name}: the cell ({label(config)}) occurs twice: remove it from `include` or from the axes"
            )


def _line_writer(resources: Mapping[str, Any], environment: str) -> Callable[[str, dict[str, Any]], str]:
    """Return the function that writes a cell's line. The common part of the cells is serialised once."""
    line = Cell("?", {}, dict(resources), environment).to_line()
    head, _, rest = line.partition('"?"')
    middle, _, tail = rest.partition("{}")
    encode = json.JSONEncoder(ensure_ascii=False).encode

    def write(cell: str, config: dict[str, Any]) -> str:
        return f'{head}"{cell}"{middle}{encode(config)}{tail}'

    return write
