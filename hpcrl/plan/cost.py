"""The maximum cost of a placed cell: its cost if it runs until its time limit."""

from __future__ import annotations

from dataclasses import dataclass

from hpcrl.plan.placement import Placement, idle_gpus
from hpcrl.spec.billing import evaluate
from hpcrl.spec.cluster import ClusterProfile, gpu_name
from hpcrl.spec.resources import Resources


@dataclass(frozen=True)
class Cost:
    """Core-hours and GPU-hours of one cell, and `billed` in the site's unit (0 if the site has none; None: not known)."""

    core_hours: float
    gpu_hours: float
    billed: float | None


def cost(profile: ClusterProfile, placement: Placement, asked: Resources) -> Cost:
    """Compute the charged resources: whole nodes with their idle GPUs if the cell gets whole nodes, and the cores that belong to GPUs."""
    node = profile.node_types[placement.node_type]
    hours = asked.time / 3600
    tasks = asked.tasks or asked.nodes
    cores = placement.cpus_per_task * (asked.nodes if asked.overcommit else tasks)
    gpus = asked.gpus + idle_gpus(profile, placement, asked)
    if gpus and node.gpus and node.gpus.cores_each:
        cores = max(cores, node.gpus.cores_each * gpus)
    if profile.allocation_unit == "node" or placement.exclusive:
        cores = node.usable_cores * asked.nodes
    billed: float | None = 0.0
    if profile.billing and asked.gpus and node.gpus and node.gpus.type in profile.billing.unknown:
        billed = None
    elif profile.billing:
        values = dict.fromkeys(profile.billing_names(), 0.0) | {
            "cores": float(cores),
            "memory_gib": asked.memory * tasks / 1024,
            "nodes": float(asked.nodes),
            "gpus": float(gpus),
            "hours": hours,
            "charge_factor": profile.qos[placement.qos].charge_factor if placement.qos else 1.0,
        }
        if node.gpus:
            values[gpu_name(node.gpus.type)] = float(gpus)
        billed = evaluate(profile.billing.expression, values)
    return Cost(cores * hours, gpus * hours, billed)
