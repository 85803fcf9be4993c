"""Place every point of a study, and group the points that are equal for Slurm."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hpcrl.catalogue.registry import frameworks
from hpcrl.formats.plan import Unplaced
from hpcrl.plan.environments import DEFAULT_ENVIRONMENT, FlavourName
from hpcrl.plan.expand import Point, expand
from hpcrl.plan.placement import NoPlace, Placement, place
from hpcrl.searches import BEST, ROLE
from hpcrl.spec.cluster import ClusterProfile
from hpcrl.spec.explain import Key
from hpcrl.spec.resources import Resources
from hpcrl.spec.study import Pin, Study

# (name, flavour, with Horovod) -> key of the rendered environment
EnvironmentKey = Callable[[str, FlavourName, bool], str]


@dataclass(frozen=True)
class Group:
    """Points that are equal for Slurm."""

    environment: str
    placement: Placement
    resources: Resources
    points: list[Point] = field(default_factory=list)
    wave: int = 0  # cells of a wave start after those of the wave before have ended


@dataclass(frozen=True)
class Refusal:
    """Points that fit nowhere, and the place in the study of what the cluster does not have."""

    unplaced: Unplaced
    at: Key


def pack(profile: ClusterProfile, study: Study, environment_key: EnvironmentKey) -> tuple[list[Group], list[Refusal]]:
    """Return the groups, smallest requests first, and the points that fit nowhere on the cluster.

    The points of a group are in blocks, one for each seed: where a machine is slow for a while, all that is compared is slow.
    """
    pin = study.placement.get(profile.name, Pin())
    groups: dict[tuple[str, Resources, int], Group] = {}
    refusals: dict[tuple[str, Resources], Refusal] = {}
    places: dict[Resources, Placement | NoPlace] = {}
    last: tuple[Resources, str, int] | None = None  # seeds follow each other, so that their group is known
    group: Group | None = None
    for point in expand(study):
        asked = point.resources
        name = software_of(study, point.config)
        wave = 1 if point.config.get(ROLE) == BEST else 0
        if last and group and asked is last[0] and (name, wave) == last[1:]:
            group.points.append(point)
            continue
        if asked not in places:
            places[asked] = place(profile, asked, pin)
        spot = places[asked]
        if isinstance(spot, NoPlace):
            shown = {key: value for key, value in point.config.items() if key != "seed"}
            same = (json.dumps(shown, sort_keys=True), asked)
            so_far = refusals.get(same) or Refusal(
                Unplaced(0, shown, as_data(asked), spot.reason, spot.nearest), point.place_of(spot.keys)
            )
            more = replace(so_far.unplaced, cells=so_far.unplaced.cells + 1)
            refusals[same] = replace(so_far, unplaced=more)
            continue
        key = environment_key(name, "cuda" if asked.gpus else "cpu", asked.parallelism == "horovod")
        group = groups.setdefault((key, asked, wave), Group(key, spot, asked, wave=wave))
        group.points.append(point)
        last = (asked, name, wave)
    blocks = {seed: number for number, seed in enumerate(study.seeds)}
    for group in groups.values():
        group.points.sort(key=lambda point: blocks.get(point.config["seed"], 0))
    return sorted(groups.values(), key=_order), list(refusals.values())


def software_of(study: Study, config: Mapping[str, Any]) -> str:
    """Return the name of the software environment of a point: the study's, or that of its framework and its way of stepping."""
    if isinstance(study.environment, str):
        return study.environment
    framework = str(config.get("framework") or DEFAULT_ENVIRONMENT)
    if not study.workload.trains or framework not in frameworks():
        return framework
    stepping = config.get("stepping", study.workload.hyperparameters.get("stepping"))
    return frameworks()[framework].software_of(stepping)


def _order(group: Group) -> tuple[Any, ...]:
    asked = group.resources
    return (group.wave, asked.gpus, asked.tasks, asked.cpus, asked.nodes, group.environment, asked.time, asked.memory)


def as_data(resources: Resources) -> dict[str, Any]:
    """Return resources in the form of cells and jobs: MiB and seconds, flags only where they are asked for."""
    data = resources.model_dump(mode="json", exclude_none=True)
    return {name: value for name, value in data.items() if value is not False}


def throttle(profile: ClusterProfile, study: Study, placement: Placement) -> int | None:
    """Return how many tasks of an array may run at the same time: the minimum of study, site and QOS."""
    running = profile.qos[placement.qos].max_running if placement.qos else None
    limits = [study.max_parallel, profile.scheduler.array_throttle, running]
    return min((limit for limit in limits if limit), default=None)
