"""Expand a study's axes to its cells."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcrl.errors import UsageError
from hpcrl.formats.facts import computed
from hpcrl.profilers import KEY as PROFILE
from hpcrl.profilers import NONE, without_idle_window
from hpcrl.spec.axes import MAX_CELLS, Option, included, options
from hpcrl.spec.explain import Key
from hpcrl.spec.resources import RESOURCES, Resources, settled
from hpcrl.spec.search import seeds_of
from hpcrl.spec.study import Study


@dataclass(frozen=True)
class Point:
    """One point of the matrix before placement: its workload, its resources, and the positions on the axes that set them."""

    config: dict[str, Any]
    resources: Resources
    options: tuple[Option, ...] = ()

    def place_of(self, keys: Sequence[str]) -> Key:
        """Return the place of the first of these resources that the point sets, else that of the study's own."""
        for key in keys:
            for option in self.options:
                if key in option.paths:
                    return option.paths[key]
        first = tuple(keys[:1])
        return ("resources", *first) if set(first) <= set(RESOURCES) else first


def expand(study: Study) -> Iterator[Point]:
    """Yield the points of a study in the order of its axes, seeds innermost.

    Raises:
        UsageError: the matrix is empty or too large.
    """
    axes = options(study)
    size = math.prod(map(len, axes)) * len(study.seeds)
    if study.search:
        trials = study.search.trials
        size = size // (trials + 1) + trials * math.prod(map(len, axes)) // (trials + 1)
    if size > MAX_CELLS:
        raise UsageError(
            f"study {study.name}: expected at most {MAX_CELLS:,} cells, got {size:,}: remove values from the longest axis, or plan in parts"
        )
    settings = list(itertools.product(*axes)) if axes or not study.include else []
    settings.extend((option,) for option in included(study))
    of_computed = Option({}, {key: ("computed", key) for key in study.computed or {}})
    defaults = {name: getattr(study.resources, name) for name in RESOURCES}
    # A cell without a profiler or tracking is the same in a study that profiles or tracks others. A command's `tracking` is its own.
    unset = ((PROFILE, NONE), ("tracking", "none")) if study.workload.trains else ((PROFILE, NONE),)
    count = 0
    cache: dict[tuple[Any, ...], Resources] = {}
    for chosen in settings:
        positions = (of_computed, *chosen)
        point = study.with_defaults({key: value for option in chosen for key, value in option.values.items()})
        if study.excludes({**defaults, **point}):
            continue
        for seeds, whole in _with_computed(study, point, seeds_of(study, point)):
            if study.computed and study.excludes({**defaults, **whole}):
                continue
            resources = _resources(study, whole, cache)
            config = {key: value for key, value in whole.items() if key not in RESOURCES and (key, value) not in unset}
            if study.workload.trains:
                config = without_idle_window(config)
            for seed in seeds:
                values_here = {**defaults, **whole, "seed": seed}
                if any(rule.matches(values_here) for rule in study.exclude if "seed" in (rule.model_extra or {})):
                    continue
                count += 1
                yield Point({**config, "seed": seed}, resources, positions)
    if count == 0:
        raise UsageError(
            f"study {study.name}: no cell is left, because its `exclude` rules match all cells: remove a rule"
        )


def _with_computed(
    study: Study, point: dict[str, Any], seeds_of_point: Sequence[int]
) -> Iterator[tuple[Sequence[int], dict[str, Any]]]:
    """Give a point with its computed values: once for all seeds, or once for each seed if they depend on it.

    Raises:
        UsageError: an expression has no value.
    """
    if not study.computed:
        yield seeds_of_point, point
        return
    from hpcrl.spec.computed import ComputeError, names_in

    of_seeds = "seed" in names_in(study.computed)
    for seeds in [(seed,) for seed in seeds_of_point] if of_seeds else [seeds_of_point]:
        try:
            yield seeds, point | study.computed_of(point, seeds[0])
        except ComputeError as error:
            raise UsageError(f"study {study.name}: computed.{error.args[0]}: {error.args[1]}") from None


def _resources(study: Study, point: dict[str, Any], cache: dict[tuple[Any, ...], Resources]) -> Resources:
    key = tuple((name, repr(point[name])) for name in (*RESOURCES, "topology", "actors") if name in point)
    if key not in cache:
        cache[key] = settled(study.resources, point, study.workload.trained_with)
    return cache[key]


def cell_ids(
    workload: Mapping[str, Any], resources: Mapping[str, Any], environment: str, axes: Container[str]
) -> Callable[[dict[str, Any]], str]:
    """Return the function from a configuration of a workload with these resources to the id of its cell.

    The id depends on what a cell computes, not on where it runs, so cells compare across clusters. Time, memory
    and exclusive enter the id only if they are axes, so a higher limit does not change an id.
    """
    shared = hashlib.sha256(json.dumps([*computed(workload, resources, axes), environment], sort_keys=True).encode())
    encode = json.JSONEncoder(sort_keys=True).encode

    def cell_id(config: dict[str, Any]) -> str:
        own = shared.copy()
        own.update(encode(config).encode())
        return own.hexdigest()[:12]

    return cell_id
