"""A site's limits for one job and for the number of waiting jobs, checked before anything is submitted.

Every array task and every job of another stage counts as one job in the queue, for the limit of its QOS and for the
scheduler's. If a plan exceeds a limit, each array task runs several cells one after another, if the time limits allow
it. Otherwise `hpcrl submit` submits it in parts, and the stage `feed` submits the next part.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hpcrl.errors import UsageError
from hpcrl.formats.plan import Job, Plan
from hpcrl.plan.placement import Placement
from hpcrl.spec.cluster import ClusterProfile
from hpcrl.spec.quantities import format_time
from hpcrl.spec.resources import Resources

MAX_ARRAY = 100_000


@dataclass(frozen=True)
class Demand:
    """Cells that are equal for Slurm: their number, their place, and the time limit of one in seconds."""

    cells: int
    placement: Placement
    time: int


@dataclass(frozen=True)
class Stages:
    """The QOS of each job of another stage that will be in the queue, by its stage."""

    qos: dict[str, str | None]

    def names(self, qos: str | None, fed: bool = False) -> list[str]:
        """Return the stages of a QOS (None: all), with `feed` only if the plan is submitted in parts."""
        return [stage for stage, stage_qos in self.qos.items() if qos in (None, stage_qos) and (fed or stage != "feed")]

    def count(self, qos: str | None, fed: bool = False) -> int:
        return len(self.names(qos, fed))


def longest(profile: ClusterProfile, placement: Placement) -> int:
    """Return the time limit of partition and QOS for one job, in seconds."""
    return profile.time_limit(placement.partition, placement.qos)


def most_memory(profile: ClusterProfile, placement: Placement, asked: Resources) -> int:
    """Return the maximum MiB per rank of node type and QOS, with more cores if a job gets memory by its cores."""
    node = profile.node_types[placement.node_type]
    most = node.memory // placement.tasks_per_node
    per_core = profile.memory.per_core.get(placement.node_type)
    if per_core and "mem" in profile.forbidden_flags:
        most = min(most, node.usable_cores // placement.tasks_per_node * per_core)
    if placement.qos and (memory := profile.qos[placement.qos].max_memory):
        most = min(most, memory // (placement.tasks_per_node * asked.nodes))
    return most


def queue_limits(profile: ClusterProfile, used: Sequence[str | None]) -> dict[str, Any]:
    """Return the maximum number of waiting jobs, in all and for each QOS of a plan, in the form of the manifest."""
    queued = {name: profile.qos[name].max_queued for name in used if name and profile.qos[name].max_queued}
    return {"submitted": profile.scheduler.max_submitted, "queued": dict(sorted(queued.items()))}


def choose_cells_per_task(
    profile: ClusterProfile, demands: Sequence[Demand], stages: Stages, wanted: int | None
) -> list[int]:
    """Return for each demand how many cells run one after another in an array task.

    It is 1 if the plan is within the limits, and if no number is enough: then the plan is submitted in parts.

    Args:
        wanted: the number from the user.

    Raises:
        UsageError: `wanted` cells need more time than partition and QOS allow, or a limit is too small for one part.
    """
    most = [min(demand.cells, longest(profile, demand.placement) // demand.time) for demand in demands]
    if wanted is not None:
        _check_wanted(profile, demands, wanted)
        chosen = [min(demand.cells, wanted) for demand in demands]
    else:
        chosen = [1] * len(demands)
        for qos, limit in _limits(profile, demands):
            members = [index for index, demand in enumerate(demands) if qos is None or demand.placement.qos == qos]
            room = limit - stages.count(qos)
            if number := _smallest(demands, chosen, most, members, room):
                for index in members:
                    chosen[index] = max(chosen[index], min(number, most[index]))
    _check_parts(profile, demands, stages, chosen)
    return chosen


def _limits(profile: ClusterProfile, demands: Sequence[Demand]) -> Iterator[tuple[str | None, int]]:
    """Give each QOS in use and its limit, then None and the limit of the scheduler."""
    for qos in dict.fromkeys(demand.placement.qos for demand in demands):
        if qos and (limit := profile.qos[qos].max_queued):
            yield qos, limit
    if limit := profile.scheduler.max_submitted:
        yield None, limit


def _smallest(
    demands: Sequence[Demand], chosen: Sequence[int], most: Sequence[int], members: Sequence[int], room: int
) -> int | None:
    def fits(number: int) -> bool:
        return (
            sum(_tasks(demands[member], max(chosen[member], min(number, most[member]))) for member in members) <= room
        )

    numbers = range(1, max(most[member] for member in members) + 1)
    place = bisect_left(numbers, True, key=fits)
    return numbers[place] if place < len(numbers) else None


def _tasks(demand: Demand, cells_per_task: int) -> int:
    return -(-demand.cells // cells_per_task)


def _check_wanted(profile: ClusterProfile, demands: Sequence[Demand], wanted: int) -> None:
    for demand in demands:
        limit = longest(profile, demand.placement)
        if min(wanted, demand.cells) * demand.time > limit:
            where = f"partition {demand.placement.partition}"
            where += f", QOS {demand.placement.qos}," if demand.placement.qos else ""
            fitting = [(longest(profile, other.placement) // other.time, other.cells) for other in demands]
            largest = min(number for number, cells in fitting if number < cells)
            raise UsageError(
                f"--cells-per-task {wanted}: {wanted} cells of {format_time(demand.time)} need {format_time(wanted * demand.time)}, but "
                f"the maximum of {where} is {format_time(limit)}: give at most {largest}"
            )


def _check_parts(profile: ClusterProfile, demands: Sequence[Demand], stages: Stages, chosen: Sequence[int]) -> None:
    """Check that a plan above a limit can be submitted in parts: at least one array task beside its stage jobs."""
    for qos, limit in _limits(profile, demands):
        if not _is_over(demands, stages, chosen, qos, limit):
            continue
        beside = stages.names(qos, fed=True)
        if 1 + len(beside) > limit:
            where = f"QOS {qos} lets" if qos else f"cluster {profile.name} lets"
            shorter = " plan with --chain parallel," if stages.count(qos) else ""
            raise UsageError(
                f"{where} {limit} job{'s' if limit > 1 else ''} of one user wait, but one array task with its stage jobs "
                f"({', '.join(beside)}) needs {1 + len(beside)}:{shorter} choose another QOS with `placement`, or remove cells"
            )


def _is_over(demands: Sequence[Demand], stages: Stages, chosen: Sequence[int], qos: str | None, limit: int) -> bool:
    tasks = sum(
        _tasks(demand, number)
        for demand, number in zip(demands, chosen, strict=True)
        if qos is None or demand.placement.qos == qos
    )
    return tasks + stages.count(qos) > limit


def largest_arrays(
    profile: ClusterProfile, demands: Sequence[Demand], stages: Stages, chosen: Sequence[int]
) -> dict[str | None, int]:
    """Return the maximum number of array tasks by QOS: the limit, less the stage jobs."""
    room: dict[str | None, int] = {}
    for qos, limit in _limits(profile, demands):
        room[qos] = limit - stages.count(qos, fed=_is_over(demands, stages, chosen, qos, limit))
    most = min(profile.scheduler.max_array_size, MAX_ARRAY, room.get(None, MAX_ARRAY))
    return {qos: min(most, room.get(qos, most)) for qos in {demand.placement.qos for demand in demands}}


def in_words(plan: Plan) -> list[str]:
    """Return one sentence for each effect of the site's limits on a plan."""
    jobs = plan.cell_jobs()
    stages = [job for job in plan.jobs if job.stage not in ("cells", "feed") and plan.is_wanted(job)]
    limits = [(f" in QOS {name}", name, limit) for name, limit in plan.limits["queued"].items()]
    limits.append(("", None, plan.limits["submitted"]))
    sentences = []
    explained = False
    for where, qos, limit in limits:
        here = [job for job in jobs if qos is None or job.qos == qos]
        beside = sum(qos is None or job.qos == qos for job in stages)
        if limit is None or not here:
            continue
        may_wait = f"{limit} job{'s' if limit > 1 else ''} may wait{where}"
        if (needed := sum(job.tasks for job in here) + beside) > limit:
            sentences.append(f"{may_wait}, and the plan has {needed}: it is submitted in parts")
        elif sum(job.count for job in here) + beside > limit:
            explained = True
            sentences.append(f"{may_wait}: {_how_many(here)} run one after another in each array task")
    if not explained and any(job.cells_per_task > 1 for job in jobs):
        sentences.append(f"{_how_many(jobs)} run one after another in each array task")
    return sentences


def _how_many(jobs: Sequence[Job]) -> str:
    numbers = {job.cells_per_task for job in jobs}
    return f"up to {max(numbers)} cells" if len(numbers) > 1 else f"{max(numbers)} cells"
