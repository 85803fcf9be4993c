"""What a site lets one job take."""

from __future__ import annotations

from hpcrl.plan.placement import Placement
from hpcrl.spec.cluster import ClusterProfile
from hpcrl.spec.study import Resources


def longest(profile: ClusterProfile, placement: Placement) -> int:
    """Return the seconds that partition and QOS allow for one job."""
    limits = [profile.partitions[placement.partition].max_time]
    if placement.qos:
        limits.append(profile.qos[placement.qos].max_time or limits[0])
    return min(limits)


def most_memory(profile: ClusterProfile, placement: Placement, asked: Resources) -> int:
    """Return the MiB for each rank that node type and QOS can give; cores come with it where memory comes with cores."""
    node = profile.node_types[placement.node_type]
    most = node.memory // placement.tasks_per_node
    per_core = profile.memory.per_core.get(placement.node_type)
    if per_core and "mem" in profile.forbidden_flags:
        most = min(most, node.usable_cores // placement.tasks_per_node * per_core)
    if placement.qos and (memory := profile.qos[placement.qos].max_memory):
        most = min(most, memory // (placement.tasks_per_node * asked.nodes))
    return most
