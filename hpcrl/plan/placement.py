"""Find the partition, QOS and node type for a cell, or the reason why it fits nowhere and the nearest request that fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpcrl.errors import UsageError, suggestion
from hpcrl.spec.cluster import ClusterProfile, GpuRequest, NodeType, Partition, Qos
from hpcrl.spec.quantities import format_memory, format_time
from hpcrl.spec.resources import Resources
from hpcrl.spec.study import Pin

_CORES = ("cpus", "tasks", "nodes")  # resources that make the cores of a node


@dataclass(frozen=True)
class Placement:
    """A place that accepts the cell. `cpus_per_task` may exceed the request if a job gets memory by its cores.

    `node_type` is the wanted type. `node_types` are all types that Slurm may choose: the request names no nodes, and a
    site may have no feature that distinguishes them. `gpus_per_node` and `gpus`, those of all nodes, are requested, which may
    be more than the cell uses.
    """

    partition: str
    qos: str | None
    node_type: str
    cpus_per_task: int
    tasks_per_node: int
    gpus_per_node: int
    exclusive: bool
    constraint: str | None = None
    node_types: tuple[str, ...] = ()
    gpus: int = 0

    @property
    def any_node(self) -> bool:
        """Whether the cell may start on nodes of another type than `node_type`."""
        return len(self.node_types) > 1


@dataclass(frozen=True)
class NoPlace:
    """The reason why a cell fits nowhere, and the smallest change with which it would fit.

    `keys` are the resources that the reason is about, the likeliest first.
    """

    reason: str
    nearest: str | None
    keys: tuple[str, ...]


@dataclass(frozen=True)
class _Size:
    """Cores, MiB and GPUs of a whole job."""

    cores: int
    memory: int
    gpus: int


class _Unfit(Exception):
    """The reason why a cell does not fit one place; `depth` is the number of checks that it passed, `keys` are those of :class:`NoPlace`."""

    def __init__(self, depth: int, reason: str, *keys: str) -> None:
        super().__init__(reason)
        self.depth, self.keys = depth, keys


def place(profile: ClusterProfile, resources: Resources, pin: Pin, any_cpu: bool = False) -> Placement | NoPlace:
    """Find the partition, node type and QOS for a cell.

    Choose the first partition, in the profile's order, with only one CPU model for such cells, because times on different
    CPUs do not compare. If there is none, choose the first that accepts the cell. `any_cpu` (for jobs that are not
    measured) chooses the first that accepts the cell at once.

    Raises:
        UsageError: the pin names a partition or QOS that the cluster does not have.
    """
    result = _search(profile, resources, pin, any_cpu)
    if isinstance(result, Placement):
        return result
    return NoPlace(str(result), _nearest(profile, resources, pin), result.keys)


def cpu_models(profile: ClusterProfile, placement: Placement) -> dict[str, list[str]]:
    """Return the CPU models on which a placed cell may run, each with its node types."""
    models: dict[str, list[str]] = {}
    for kind in placement.node_types or (placement.node_type,):
        node = profile.node_types[kind]
        models.setdefault(f"{node.cpu or kind} ({node.arch})", []).append(kind)
    return models


def idle_gpus(profile: ClusterProfile, placement: Placement, asked: Resources) -> int:
    """Return how many GPUs of a cell's whole nodes the cell does not use. No other job can use them either."""
    gpus = profile.node_types[placement.node_type].gpus
    is_whole = placement.exclusive or profile.allocation_unit == "node"
    return gpus.count * asked.nodes - asked.gpus if gpus and asked.gpus and is_whole else 0


def _search(profile: ClusterProfile, resources: Resources, pin: Pin, any_cpu: bool = False) -> Placement | _Unfit:
    if pin.partition and pin.partition not in profile.partitions:
        raise UsageError(
            f"cluster {profile.name}: no partition {pin.partition!r}; {suggestion(pin.partition, profile.partitions)}"
        )
    if pin.qos and pin.qos not in profile.qos:
        raise UsageError(f"cluster {profile.name}: no QOS {pin.qos!r}; {suggestion(pin.qos, profile.qos)}")
    worst = _Unfit(-1, f"{profile.title} has no partition for this cell")
    mixed: Placement | None = None
    for name, partition in profile.partitions.items():
        if (name != pin.partition) if pin.partition else partition.on_request:
            continue
        for node_type in partition.node_types:
            try:
                placement = _fit(profile, resources, name, partition, node_type, pin)
            except _Unfit as unfit:
                if unfit.depth > worst.depth:
                    worst = unfit
                continue
            if any_cpu or len(cpu_models(profile, placement)) == 1:
                return placement
            mixed = mixed or placement
    return mixed or worst


def _fit(
    profile: ClusterProfile, resources: Resources, name: str, partition: Partition, node_name: str, pin: Pin
) -> Placement:
    node = profile.node_types[node_name]
    tasks = resources.tasks or resources.nodes
    tasks_per_node = -(-tasks // resources.nodes)
    gpus_per_node, exclusive = _fit_gpus(profile, resources, partition, node, node_name)
    used_per_node = -(-resources.gpus // resources.nodes)
    gpus = resources.gpus if gpus_per_node == used_per_node else gpus_per_node * resources.nodes
    _fit_architecture(profile, node, node_name)
    exclusive = exclusive or resources.exclusive or (profile.exclusive_beyond_one_node and resources.nodes > 1)
    reachable = _reachable(profile, partition, node, resources, gpus_per_node)
    cpus = resources.cpus
    # Slurm may choose the node type with the least memory per core.
    per_core = min((profile.memory.per_core.get(kind, 0) for kind in reachable), default=0)
    if per_core and "mem" in profile.forbidden_flags:
        cpus = max(cpus, -(-resources.memory // per_core))
    cores = cpus * (1 if resources.overcommit else tasks_per_node)
    beside = (
        f" beside {'an' if node.gpus.type[0] in 'aeiou' else 'a'} {node.gpus.type}"
        if node.gpus and resources.gpus
        else ""
    )
    if cores > node.usable_cores:
        because = f", because {format_memory(resources.memory)} needs {cpus} cores" if cpus > resources.cpus else ""
        raise _Unfit(
            3,
            f"it asks for {cores} cores per node{beside}, but {node_name} nodes have {node.usable_cores}{because}",
            *(("memory", *_CORES) if because else _CORES),
        )
    if partition.max_cores_per_node and cores > partition.max_cores_per_node:
        raise _Unfit(
            3,
            f"it asks for {cores} cores per node, but partition {name} gives at most {partition.max_cores_per_node}",
            *_CORES,
        )
    memory = resources.memory * tasks_per_node
    if memory > node.memory:
        raise _Unfit(
            4,
            f"it asks for {format_memory(memory)} per node, but {node_name} nodes have {format_memory(node.memory)}",
            "memory",
            "tasks",
        )
    reachable = tuple(
        kind
        for kind in reachable
        if profile.node_types[kind].usable_cores >= cores and profile.node_types[kind].memory >= memory
    )
    counts = [profile.node_types[kind].count for kind in reachable]
    there = None if None in counts else sum(count or 0 for count in counts)
    most = min(partition.max_nodes or resources.nodes, resources.nodes if there is None else there)
    if resources.nodes > most:
        kinds = " or ".join(reachable)
        raise _Unfit(
            5, f"it asks for {resources.nodes} nodes, but partition {name} has {most} of type {kinds}", "nodes"
        )
    size = _Size(cores * resources.nodes, memory * resources.nodes, gpus)
    qos = _fit_qos(profile, resources, name, partition, size, pin)
    if resources.exclusive and (why := {**profile.forbidden_flags, **partition.forbidden_flags}.get("exclusive")):
        raise _Unfit(9, f"it asks for whole nodes, but {profile.title} forbids --exclusive ({why})", "exclusive")
    return Placement(
        name, qos, node_name, cpus, tasks_per_node, gpus_per_node, exclusive, node.constraint, reachable, gpus
    )


def _fit_architecture(profile: ClusterProfile, node: NodeType, node_name: str) -> None:
    built_on = profile.build_architectures()
    if built_on != {node.arch}:
        where = profile.environments.build_partition
        raise _Unfit(
            2,
            f"{node_name} nodes are {node.arch}, but software environments are built on {' or '.join(sorted(built_on))}"
            f"{f' (partition {where})' if where else ''} and would not run there: "
            "name another environments.build_partition in your own profile",
            "gpu_type",
            "gpus",
        )


def _reachable(
    profile: ClusterProfile, partition: Partition, wanted: NodeType, resources: Resources, gpus: int
) -> tuple[str, ...]:
    """Return the node types of a partition that Slurm may choose for a job's request, without regard to sizes."""
    typed = profile.gpu_request in (GpuRequest.GRES_TYPED, GpuRequest.GPUS_TYPED)
    kinds = []
    for kind in partition.node_types:
        node = profile.node_types[kind]
        if wanted.constraint and wanted.constraint not in (node.constraint, *node.features):
            continue
        if resources.gpus:
            if not node.gpus or node.gpus.count < gpus:
                continue
            if typed and wanted.gpus and node.gpus.type != wanted.gpus.type:
                continue
        elif node.gpus and partition.excludes_gpu_nodes:
            continue
        kinds.append(kind)
    return tuple(kinds)


def _fit_gpus(
    profile: ClusterProfile, resources: Resources, partition: Partition, node: NodeType, node_name: str
) -> tuple[int, bool]:
    if resources.gpus == 0:
        if partition.gpu_jobs_only:
            raise _Unfit(0, "it asks for no GPU, but this partition is for GPU jobs only", "gpus")
        if node.gpus and not all(node_type.gpus for node_type in profile.node_types.values()):
            raise _Unfit(0, f"it asks for no GPU, but {node_name} nodes are reserved for cells with GPUs", "gpus")
        return 0, False
    wanted = f"{resources.gpus} {resources.gpu_type or 'GPU'}{'s' if resources.gpus > 1 else ''}"
    if profile.gpu_request is GpuRequest.NONE:
        raise _Unfit(0, f"it asks for {wanted}, but {profile.title} has no GPU", "gpus")
    if not node.gpus:
        raise _Unfit(0, f"it asks for {wanted}, but {node_name} nodes have no GPU", "gpus")
    if resources.gpu_type and node.gpus.type != resources.gpu_type:
        kinds = ", ".join(profile.gpu_types())
        if pinned := _only_pinned(profile, resources.gpu_type):
            raise _Unfit(
                1,
                f"it asks for {wanted}, which only partition {pinned} has: name it in the study's `placement`",
                "gpu_type",
            )
        raise _Unfit(1, f"it asks for {wanted}, but {profile.title} has only {kinds}", "gpu_type")
    per_node = -(-resources.gpus // resources.nodes)
    if per_node > node.gpus.count:
        raise _Unfit(
            2, f"it asks for {per_node} GPUs per node, but {node_name} nodes have {node.gpus.count}", "gpus", "nodes"
        )
    # On a whole node further GPUs are nobody else's: the request may have more than the cell uses.
    is_whole = resources.exclusive or profile.allocation_unit == "node"
    counts = node.gpus.request_counts or (per_node,)
    larger = [count for count in counts if per_node < count <= node.gpus.count]
    if per_node not in counts:
        if not is_whole or not larger:
            raise _Unfit(
                2,
                f"it asks for {per_node} GPUs per node, but {profile.title} accepts {', '.join(map(str, counts))} (`exclusive: true` asks "
                "for whole nodes, on which GPUs may be idle)",
                "gpus",
                "nodes",
            )
        per_node = min(larger)
    if node.gpus.whole_node_beyond_one and resources.nodes > 1:
        if per_node != node.gpus.count and not is_whole:
            raise _Unfit(
                2,
                f"it asks for several {node_name} nodes, which must be whole nodes: request all {node.gpus.count} GPUs of each, or set "
                "`exclusive: true` and leave some idle",
                "gpus",
                "nodes",
            )
        return node.gpus.count, True
    return per_node, False


def _only_pinned(profile: ClusterProfile, gpu_type: str) -> str | None:
    """Return the first partition with GPUs of a type if all such partitions are used only on request."""
    having = [
        name
        for name, partition in profile.partitions.items()
        if any((gpus := profile.node_types[kind].gpus) and gpus.type == gpu_type for kind in partition.node_types)
    ]
    return having[0] if having and all(profile.partitions[name].on_request for name in having) else None


def _fit_qos(
    profile: ClusterProfile,
    resources: Resources,
    name: str,
    partition: Partition,
    size: _Size,
    pin: Pin,
) -> str | None:
    candidates = [pin.qos] if pin.qos else [qos for qos in partition.qos if not profile.qos[qos].on_request]
    if pin.qos and pin.qos not in partition.qos:
        raise _Unfit(
            7, f"partition {name} does not take QOS {pin.qos}; {suggestion(pin.qos, partition.qos)}", "placement"
        )
    if resources.time > partition.max_time:
        candidates = [qos for qos in candidates if profile.qos[qos].overrides_partition_time]
        if not candidates:
            limit = format_time(partition.max_time)
            raise _Unfit(
                6, f"it asks for {format_time(resources.time)}, but the maximum of partition {name} is {limit}", "time"
            )
    if not candidates:
        return None
    reasons, keys = [], []
    for candidate in candidates:
        if not (over := _over(profile.qos[candidate], resources, size)):
            return candidate
        key, reason = over
        reasons.append(f"QOS {candidate} {reason}")
        keys.append(key)
    raise _Unfit(8, f"in partition {name} " + ", ".join(reasons), *keys)


def _over(qos: Qos, resources: Resources, size: _Size) -> tuple[str, str] | None:
    """Return the resource with which a job exceeds a QOS, and how; None if it does not."""
    if qos.max_time and resources.time > qos.max_time:
        return "time", f"allows at most {format_time(qos.max_time)}"
    if resources.nodes < qos.min_nodes:
        return "nodes", f"needs at least {qos.min_nodes} nodes"
    if qos.max_nodes and resources.nodes > qos.max_nodes:
        return "nodes", f"allows at most {qos.max_nodes} nodes"
    if qos.max_cores and size.cores > qos.max_cores:
        return "cpus", f"allows at most {qos.max_cores} cores"
    if qos.max_gpus and size.gpus > qos.max_gpus:
        return "gpus", f"allows at most {qos.max_gpus} GPUs"
    if qos.max_memory and size.memory > qos.max_memory:
        return "memory", f"stops at {format_memory(qos.max_memory)}"
    return None


def _nearest(profile: ClusterProfile, resources: Resources, pin: Pin) -> str | None:
    """Return the first single change with which the cell fits. Small changes are tried first."""
    for words, changed in _relaxations(profile, resources):
        if isinstance(placement := _search(profile, changed, pin), Placement):
            qos = f", QOS {placement.qos}" if placement.qos else ""
            return f"{words} would fit (partition {placement.partition}{qos}, {placement.node_type} nodes)"
    return None


def _relaxations(profile: ClusterProfile, asked: Resources) -> Iterator[tuple[str, Resources]]:
    tasks_per_node = -(-(asked.tasks or asked.nodes) // asked.nodes)
    nodes = profile.node_types.values()
    limits = {limit for partition in profile.partitions.values() for limit in [partition.max_time]}
    limits |= {qos.max_time for qos in profile.qos.values() if qos.max_time}
    sharing = 1 if asked.overcommit else tasks_per_node
    if asked.exclusive:
        yield "exclusive: false", asked.model_copy(update={"exclusive": False})
    for cpus in sorted({node.usable_cores // sharing for node in nodes} - {0}, reverse=True):
        if cpus < asked.cpus:
            yield f"cpus: {cpus}", asked.model_copy(update={"cpus": cpus})
    if tasks_per_node > 1 and not asked.overcommit:
        yield "overcommit: true (the ranks of a node share its cores)", asked.model_copy(update={"overcommit": True})
    for memory in sorted({node.memory // tasks_per_node for node in nodes}, reverse=True):
        if memory < asked.memory:
            yield f"memory: {format_memory(memory)}", asked.model_copy(update={"memory": memory})
    for seconds in sorted(limits, reverse=True):
        if seconds < asked.time:
            yield f"time: {format_time(seconds)}", asked.model_copy(update={"time": seconds})
    for count in range(asked.gpus - 1, 0, -1):
        tasks = min(asked.tasks or 1, count) if asked.parallelism != "none" else asked.tasks
        yield f"gpus: {count}", asked.model_copy(update={"gpus": count, "tasks": tasks})
    for kind in profile.gpu_types():
        if asked.gpus and kind != asked.gpu_type:
            yield f"gpu_type: {kind}", asked.model_copy(update={"gpu_type": kind})
    for count in range(asked.nodes - 1, 0, -1):
        yield f"nodes: {count}", asked.model_copy(update={"nodes": count})
    if asked.gpus:
        without = {"gpus": 0, "gpu_type": None}
        kept = (
            f" (the same {asked.parallelism} ranks on CPU cores)" if asked.parallelism != "none" else " (on CPU cores)"
        )
        yield f"gpus: 0{kept}", asked.model_copy(update=without)
