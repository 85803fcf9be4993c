"""What a plan says of the places of its cells: one sentence each, without the full stop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpcrl.catalogue.training import learning_gpus
from hpcrl.errors import count
from hpcrl.plan.placement import Placement, cpu_models, idle_gpus
from hpcrl.spec.cluster import ClusterProfile
from hpcrl.spec.resources import Resources


def idle_notes(profile: ClusterProfile, placed: Iterable[tuple[Placement, Resources]], trains: bool) -> list[str]:
    """Return the notes of a plan on GPUs that are idle, one sentence each, without the full stop.

    Args:
        trains: the cells are built-in training, which computes on one GPU for each rank.
    """
    said = []
    for placement, asked in placed:
        used = learning_gpus(asked.gpus, asked.tasks or 1, asked.parallelism)
        if trains and (rest := asked.gpus - used):
            said.append(
                f"cells with {count(asked.gpus, 'GPU')} learn on {used} of them, one for each rank; {rest} {'is' if rest == 1 else 'are'} idle: "
                "with a `parallelism` each GPU has a rank"
            )
        if idle := idle_gpus(profile, placement, asked):
            kind, are = placement.node_type, "is" if idle == 1 else "are"
            nodes = f"a whole {kind} node" if asked.nodes == 1 else f"{asked.nodes} whole {kind} nodes"
            said.append(
                f"cells with {count(asked.gpus, 'GPU')} have {nodes}: {idle} of the {asked.gpus + idle} GPUs there {are} idle"
            )
    return list(dict.fromkeys(said))


def capability_notes(
    profile: ClusterProfile, placed: Iterable[tuple[Placement, str]], needed: Mapping[str, tuple[str, float]]
) -> list[str]:
    """Return the notes of a plan on GPUs that are too old for the packages of their cells, one sentence each, without the full stop.

    Args:
        placed: the place of cells with the key of their software environment. needed: name of an environment, and least compute
            capability, by key.
    """
    said = []
    for placement, key in placed:
        kind = profile.node_types[placement.node_type].gpus
        name, least = needed.get(key, ("", 0.0))
        if placement.gpus_per_node and kind and kind.capability and kind.capability < least:
            said.append(
                f"cells of environment {name} on {kind.type} would fail: these GPUs have compute capability {kind.capability:.1f}, "
                f"and the packages have programs for {least:.1f} and newer only"
            )
    return list(dict.fromkeys(said))


def notes(profile: ClusterProfile, placements: Iterable[Placement]) -> list[str]:
    """Return the notes of a plan on the places of its cells, one sentence each, without the full stop."""
    said = []
    for placement in placements:
        if len(models := cpu_models(profile, placement)) > 1:
            kinds = " or ".join(f"{model.rpartition(' (')[0]} on {', '.join(names)}" for model, names in models.items())
            said.append(
                f"cells in partition {placement.partition} may start on different CPUs, whose times do not compare "
                f"({kinds}): {profile.name} has no option to choose one"
            )
        partition = profile.partitions[placement.partition]
        if partition.on_request and partition.note:
            said.append(f"partition {placement.partition}: {partition.note}")
        qos = profile.qos[placement.qos] if placement.qos else None
        if qos and qos.on_request and qos.note:
            said.append(f"QOS {placement.qos}: {qos.note}")
        if qos and qos.preemptable:
            said.append(f"jobs in QOS {placement.qos} may be preempted")
        kind = profile.node_types[placement.node_type].gpus
        if placement.gpus_per_node and kind and profile.billing and kind.type in profile.billing.unknown:
            said.append(
                f"the charge of {profile.name} for cells with {kind.type} is not known: they are not in the sum of "
                f"{profile.billing.unit}"
            )
    return list(dict.fromkeys(said))
