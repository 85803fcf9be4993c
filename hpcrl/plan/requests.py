"""Write the request for a placed cell: the #SBATCH options and the srun options, in the site's form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hpcrl.errors import UsageError
from hpcrl.plan.placement import Placement
from hpcrl.spec.cluster import ClusterProfile, GpuRequest
from hpcrl.spec.quantities import format_time
from hpcrl.spec.resources import Resources

Options = list[tuple[str, str | int | bool]]


@dataclass(frozen=True)
class Request:
    """`directives` for sbatch and `launch`, the arguments for srun."""

    directives: Options
    launch: list[str]


def _gres_typed(count: int, total: int, kind: str) -> Options:
    return [("gres", f"gpu:{kind}:{count}")]


def _gres(count: int, total: int, kind: str) -> Options:
    return [("gres", f"gpu:{count}")]


def _gpus(count: int, total: int, kind: str) -> Options:
    return [("gpus", total)]


def _gpus_typed(count: int, total: int, kind: str) -> Options:
    return [("gpus", f"{kind}:{total}")]


def _constraint(count: int, total: int, kind: str) -> Options:
    return [("constraint", "gpu"), ("gpus", total)]


def _nothing(count: int, total: int, kind: str) -> Options:
    return []


# (GPUs per node, GPUs in all, type) -> options
GPU_RENDERERS: dict[GpuRequest, Callable[[int, int, str], Options]] = {
    GpuRequest.GRES_TYPED: _gres_typed,
    GpuRequest.GRES: _gres,
    GpuRequest.GPUS: _gpus,
    GpuRequest.GPUS_TYPED: _gpus_typed,
    GpuRequest.CONSTRAINT: _constraint,
    GpuRequest.PARTITION_ONLY: _nothing,
    GpuRequest.NONE: _nothing,
}


def _also_constrained(options: Options, feature: str) -> Options:
    """Request a feature, too. Slurm accepts one --constraint only, so features are joined."""
    given = [str(value) for name, value in options if name == "constraint"]
    others = [option for option in options if option[0] != "constraint"]
    return [*others, ("constraint", "&".join([*given, feature]))]


def request(
    profile: ClusterProfile,
    placement: Placement,
    resources: Resources,
    account: str | None,
    email: str | None,
) -> Request:
    """Write the sbatch and srun options of a placed cell, by the site's required and forbidden flags.

    Raises:
        UsageError: the site requires an option without a value here, or forbids an option that the cell needs.
    """
    partition = profile.partitions[placement.partition]
    forbidden = {**profile.forbidden_flags, **partition.forbidden_flags}
    tasks = resources.tasks or resources.nodes
    node = profile.node_types[placement.node_type]
    wanted: Options = []
    if account:
        wanted.append(("account", account))
    wanted.append(("partition", placement.partition))
    if placement.qos:
        wanted.append(("qos", placement.qos))
    wanted += [
        ("time", format_time(resources.time)),
        ("nodes", resources.nodes),
        ("ntasks", resources.nodes if resources.overcommit else tasks),
        ("cpus-per-task", placement.cpus_per_task),
        ("mem", f"{resources.memory * placement.tasks_per_node}M"),
    ]
    if resources.gpus and node.gpus:
        wanted += GPU_RENDERERS[profile.gpu_request](placement.gpus_per_node, placement.gpus, node.gpus.type)
    if placement.constraint:
        wanted = _also_constrained(wanted, placement.constraint)
    if placement.exclusive:
        wanted.append(("exclusive", True))
    if email:
        wanted += [("mail-user", email), ("mail-type", "END,FAIL")]
    # Leave out options that srun can take instead, and those with the site's default; the rest is a conflict.
    left_out = {"ntasks", "cpus-per-task", "mem", "mail-user", "mail-type"}
    for flag, _ in wanted:
        if flag in forbidden and flag not in left_out:
            raise UsageError(
                f"cluster {profile.name}: the site forbids --{flag} ({forbidden[flag]}), but this cell needs it: "
                "choose another partition, or change the cell's resources"
            )
    directives = [option for option in wanted if option[0] not in forbidden]
    given = {flag for flag, _ in directives} | set(profile.script.directives)
    for flag in profile.required_flags:
        if flag in given:
            continue
        if flag == "account":
            raise UsageError(
                f"cluster {profile.name}: the site requires an account: give --account, set HPCRL_ACCOUNT, "
                "or put it under `accounts` in the settings"
            )
        raise UsageError(
            f"cluster {profile.name}: the site requires --{flag}, but the profile has no value for this cell: "
            "add it to script.directives"
        )
    launch = [f"--ntasks={tasks}", f"--cpus-per-task={placement.cpus_per_task}", "--kill-on-bad-exit=1"]
    if resources.overcommit:
        launch.append("--overcommit")
    if tasks > 1 and profile.launch.mpi:
        launch.append(f"--mpi={profile.launch.mpi}")
    return Request(directives, [*launch, *profile.launch.arguments])
