"""The cluster profile: the resources and the rules of a site, as data.

A profile contains nothing personal: account and e-mail come from the user (:mod:`hpcrl.spec.user`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from hpcrl.catalogue.registry import schedulers
from hpcrl.errors import suggestion
from hpcrl.spec.billing import evaluate
from hpcrl.spec.explain import Faults, Key
from hpcrl.spec.quantities import MiB, Name, Seconds, format_memory

# The sbatch flags that a profile may require or forbid; others go into `script.directives`.
FLAGS = (
    "account", "partition", "qos", "time", "nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "mem", "gres",
    "gpus", "gpus-per-task", "constraint", "exclusive", "export", "mail-user", "mail-type", "licenses",
)  # fmt: skip


class Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _flag(value: Any) -> Any:
    if value not in FLAGS:
        raise ValueError(f"{value!r} is not an sbatch flag that profiles know; {suggestion(str(value), FLAGS)}")
    return value


Flag = Annotated[str, BeforeValidator(_flag)]


def _scheduler(value: Any) -> Any:
    if value not in schedulers():
        raise ValueError(f"no scheduler {value!r}; {suggestion(str(value), schedulers())}")
    return value


SchedulerName = Annotated[
    str, BeforeValidator(_scheduler), WithJsonSchema({"type": "string", "enum": list(schedulers())})
]


class GpuRequest(StrEnum):
    """The form in which jobs of a site request GPUs; :mod:`hpcrl.plan.requests` renders each."""

    GRES_TYPED = "gres_typed"  # --gres=gpu:a100:2
    GRES = "gres"  # --gres=gpu:2
    GPUS = "gpus"  # --gpus=2
    GPUS_TYPED = "gpus_typed"  # --gpus=a100:2
    CONSTRAINT = "constraint"  # --constraint=gpu --gpus=2
    PARTITION_ONLY = "partition_only"  # the partition implies the GPUs
    NONE = "none"  # no GPUs here


class Source(Model):
    title: str = Field(description="the page or file that was read")
    as_of: str = Field(description="when it was read or last changed, such as 2026-08")
    url: str | None = None


class Gpus(Model):
    type: Name = Field(description="the name that Slurm and studies use, such as a100")
    count: int = Field(ge=1, description="GPUs that a job sees on one node")
    memory: MiB | None = None
    capability: float | None = Field(None, gt=0, description="CUDA compute capability, such as 8.0")
    request_counts: tuple[int, ...] | None = Field(None, description="the only numbers of GPUs that a job may request")
    cores_each: int | None = Field(None, ge=1, description="cores that a job gets for each GPU")
    whole_node_beyond_one: bool = Field(
        False, description="a job on more than one node gets whole nodes with all their GPUs"
    )


class NodeType(Model):
    count: int | None = Field(None, ge=1)
    cores: int = Field(ge=1, description="physical cores of a node, not hardware threads")
    reserved_cores: int = Field(0, ge=0, description="cores that jobs cannot use, such as 8 on Frontier")
    memory: MiB
    arch: Literal["x86_64", "aarch64"] = "x86_64"
    cpu: str | None = None
    gpus: Gpus | None = None
    features: tuple[Name, ...] = Field((), description="Slurm's features of these nodes")
    constraint: Name | None = Field(
        None, description="a feature that only nodes of this type have: jobs request it with --constraint"
    )

    @property
    def usable_cores(self) -> int:
        return self.cores - self.reserved_cores


class Qos(Model):
    max_time: Seconds | None = None
    min_nodes: int = Field(1, ge=1)
    max_nodes: int | None = Field(None, ge=1)
    max_cores: int | None = Field(None, ge=1, description="maximum number of cores of one job")
    max_gpus: int | None = Field(None, ge=1, description="maximum number of GPUs of one job")
    max_memory: MiB | None = None
    max_running: int | None = Field(None, ge=1)
    max_queued: int | None = Field(None, ge=1)
    charge_factor: float = Field(1.0, ge=0)
    preemptable: bool = False
    on_request: bool = Field(False, description="never chosen unless the study or the user names it")
    overrides_partition_time: bool = Field(
        False, description="max_time replaces the partition's limit (Slurm's flag PartitionTimeLimit)"
    )
    note: str | None = None

    @model_validator(mode="after")
    def _time(self) -> Qos:
        if self.overrides_partition_time and not self.max_time:
            raise ValueError("overrides_partition_time: needs a max_time")
        return self


class Partition(Model):
    node_types: tuple[Name, ...] = Field(min_length=1)
    max_time: Seconds
    max_nodes: int | None = Field(None, ge=1)
    max_cores_per_node: int | None = Field(None, ge=1)
    qos: tuple[Name, ...] = ()
    default: bool = False
    on_request: bool = Field(False, description="never chosen unless the study or the user names it")
    gpu_jobs_only: bool = False
    excludes_gpu_nodes: bool = Field(False, description="the site does not start jobs without GPUs on nodes with GPUs")
    forbidden_flags: dict[Flag, str] = Field({}, description="flag: why the site refuses it")
    note: str | None = None


class Scheduler(Model):
    kind: SchedulerName = "slurm"
    version: str | None = None
    max_array_size: int = Field(1001, ge=2, description="MaxArraySize: array indices stay below it")
    max_submitted: int | None = Field(None, ge=1, description="maximum number of jobs of one user in the queue")
    max_job_count: int | None = Field(
        None, ge=2, description="MaxJobCount: maximum number of jobs of all users; sbatch blocks when it is reached"
    )
    preempt_mode: Literal["REQUEUE", "CANCEL"] | None = Field(
        None, description="PreemptMode: what happens to a preempted job; default: not known"
    )
    preempt_exempt_time: Seconds | None = Field(
        None, description="PreemptExemptTime: minimum run time of a job before it may be preempted"
    )
    accounting_store_flags: tuple[Literal["job_comment", "job_env", "job_extra", "job_script"], ...] = Field(
        (),
        description="AccountingStoreFlags: what accounting stores; without job_comment it does not store the comments of jobs",
    )
    enforce_memory: bool | None = Field(
        None, description="whether Slurm ends a job that exceeds its memory (OUT_OF_MEMORY); default: not known"
    )
    array_throttle: int | None = Field(
        None, ge=1, description="maximum number of array tasks that run at the same time"
    )
    enforce_part_limits: bool = Field(False, description="whether sbatch refuses a time above the limit")
    poll_interval: int = Field(30, ge=1, description="minimum seconds between status requests")
    max_requeues: int = Field(3, ge=0)
    signal_lead: int = Field(120, ge=10, description="seconds before the time limit at which USR2 is sent")

    @property
    def here(self) -> bool:
        """Tell whether jobs run on the machine that submits them."""
        return schedulers()[self.kind].here


class Memory(Model):
    """How a job gets memory: by request, or in proportion to its cores."""

    per_core: dict[Name, MiB] = Field(
        {}, description="node type: memory that a job gets for each core, if --mem is forbidden"
    )


class Billing(Model):
    unit: str
    expression: str = Field(
        description="of cores, memory_gib, nodes, gpus, gpu_<type>, hours and charge_factor, for one job"
    )
    unknown: tuple[Name, ...] = Field(
        (), description="GPU types whose charge is not known: the plan gives no number for them"
    )


class Environments(Model):
    manager: Literal["uv", "venv", "conda", "mamba", "micromamba"]
    root: str = Field(
        description="where environments are built; $HOME, $USER and other variables are expanded on the cluster"
    )
    owners: tuple[Name, ...] = Field(
        (),
        description="other users whose environments may be used, such as the maintainer of the shared ones; your own and root's always may",
    )
    setup: tuple[str, ...] = Field((), description="shell lines before every use, such as `module load ...`")
    activate: str | None = Field(
        None, description="shell line that activates $HPCRL_ENV; default: its bin/ goes to the front of PATH"
    )
    channels: tuple[str, ...] = ("conda-forge",)
    build_partition: Name | None = None
    build_qos: Name | None = None
    forbidden: tuple[str, ...] = Field((), description="commands that the site forbids, such as `conda init`")


class Launch(Model):
    arguments: tuple[str, ...] = ()
    mpi: str | None = Field(None, description="value of srun --mpi for jobs of several tasks")


class Script(Model):
    directives: dict[Name, str | int | bool] = Field(
        {}, description="#SBATCH lines for every job, long names without --"
    )
    lines: tuple[str, ...] = Field((), description="shell lines at the top of every job")


class ClusterProfile(Model):
    name: Name
    title: str
    status: Literal["active", "retired"] = "active"
    retired_on: str | None = None
    successor: Name | None = None
    sources: dict[str, Source] = Field(min_length=1)
    default_study: Name
    scheduler: Scheduler = Scheduler()
    gpu_request: GpuRequest = GpuRequest.NONE
    required_flags: tuple[Flag, ...] = ()
    forbidden_flags: dict[Flag, str] = Field({}, description="flag: why the site refuses it")
    allocation_unit: Literal["core", "node"] = "core"
    exclusive_beyond_one_node: bool = Field(
        False, description="jobs on several nodes request whole nodes (--exclusive)"
    )
    memory: Memory = Memory()
    node_types: dict[Name, NodeType] = Field(min_length=1)
    partitions: dict[Name, Partition] = Field(min_length=1)
    qos: dict[Name, Qos] = {}
    billing: Billing | None = None
    environments: Environments
    launch: Launch = Launch()
    script: Script = Script()

    @model_validator(mode="after")
    def _references(self) -> ClusterProfile:
        if faults := [*self._unknown_names(), *self._script_faults()]:
            raise Faults(faults)
        if self.billing:
            evaluate(self.billing.expression, self.billing_names())
        return self

    def _unknown_names(self) -> Iterator[tuple[Key, str]]:
        for name, partition in self.partitions.items():
            for index, node_type in enumerate(partition.node_types):
                if node_type not in self.node_types:
                    at: Key = ("partitions", name, "node_types", index)
                    yield at, f"no node type {node_type!r}; {suggestion(node_type, self.node_types)}"
            for index, qos in enumerate(partition.qos):
                if qos not in self.qos:
                    yield ("partitions", name, "qos", index), f"no QOS {qos!r}; {suggestion(qos, self.qos)}"
        build = self.environments.build_partition
        if build is not None and build not in self.partitions:
            yield (
                ("environments", "build_partition"),
                f"no partition {build!r}; {suggestion(build, self.partitions)}",
            )
        for name, node in self.node_types.items():
            if node.gpus and self.gpu_request is GpuRequest.NONE:
                yield ("node_types", name, "gpus"), "has GPUs, but gpu_request is none"
        for node_type in self.memory.per_core:
            if node_type not in self.node_types:
                at = ("memory", "per_core", node_type)
                yield at, f"no node type {node_type!r}; {suggestion(node_type, self.node_types)}"
        for kind in self.billing.unknown if self.billing else ():
            if kind not in self.gpu_types():
                yield ("billing", "unknown"), f"no GPU type {kind!r}; {suggestion(kind, self.gpu_types())}"

    def _script_faults(self) -> Iterator[tuple[Key, str]]:
        for flag in self.required_flags:
            if flag in self.forbidden_flags:
                yield ("required_flags",), f"the flag {flag!r} is both required and forbidden: remove it from one list"
        for key, value in self.script.directives.items():
            if key in ("account", "mail-user") and "%u" not in str(value):
                yield (
                    ("script", "directives", key),
                    "is personal: leave it out of the profile, because each user gives it",
                )
        kept = any("SLURM_EXPORT_ENV=ALL" in line for line in self.script.lines)
        kept = kept or any(argument.startswith("--export=ALL") for argument in self.launch.arguments)
        if str(self.script.directives.get("export", "")).upper() in ("NONE", "NIL") and not kept:
            yield (
                ("script", "directives", "export"),
                "gives an empty environment to the steps of srun, too: add `export SLURM_EXPORT_ENV=ALL` to script.lines "
                "(`+lines:` adds to the lines of the profile that is extended)",
            )

    def time_limit(self, partition: str, qos: str | None) -> int:
        """Return the seconds that a partition and a QOS allow for one job."""
        most = self.partitions[partition].max_time
        chosen = self.qos[qos] if qos else Qos()
        if chosen.max_time and chosen.overrides_partition_time:
            return chosen.max_time
        return min(most, chosen.max_time or most)

    def build_architectures(self) -> set[str]:
        """Return the architectures of the nodes that environments are built on."""
        usual = next((name for name, candidate in self.partitions.items() if not candidate.on_request), None)
        partition = self.partitions[self.environments.build_partition or usual or next(iter(self.partitions))]
        return {self.node_types[kind].arch for kind in partition.node_types}

    def billing_names(self) -> dict[str, float]:
        """Return each name that a billing expression may use, with the value 1."""
        names = ["cores", "memory_gib", "nodes", "gpus", "hours", "charge_factor"]
        return dict.fromkeys([*names, *(gpu_name(kind) for kind in self.gpu_types())], 1.0)

    def gpu_words(self) -> list[str]:
        """Return each GPU type with its memory, if it is known: ``a100 (80G)``."""
        memories = {node.gpus.type: node.gpus.memory for node in self.node_types.values() if node.gpus}
        return [f"{kind} ({format_memory(memory)})" if memory else kind for kind, memory in memories.items()]

    def gpu_types(self) -> list[str]:
        """Return the GPU types of the site, in the profile's order."""
        return list(dict.fromkeys(node.gpus.type for node in self.node_types.values() if node.gpus))


def gpu_name(gpu_type: str) -> str:
    """Return the name under which a billing expression knows the count of GPUs of a type."""
    return "gpu_" + re.sub(r"\W", "_", gpu_type)
