"""The resources that a cell may request, and the base class of all models of a study."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hpcrl.catalogue.training import ranks_with_actors
from hpcrl.spec.explain import in_words
from hpcrl.spec.quantities import MiB, Name, Seconds, parse_memory, parse_time

Scalar = str | int | float | bool
# Axis names that are resources; every other axis configures the workload.
RESOURCES = ("cpus", "gpus", "gpu_type", "nodes", "tasks", "memory", "time", "parallelism", "exclusive", "overcommit")


class Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Resources(Model):
    """The resources of a cell unless an axis sets others. Cores and memory are per task, `memory` in MiB, `time` in seconds.

    With `overcommit` the cores are per node.
    """

    cpus: int = Field(1, ge=1, strict=True)
    gpus: int = Field(0, ge=0, strict=True, description="GPUs of the whole cell")
    gpu_type: Name | None = None
    nodes: int = Field(1, ge=1, strict=True)
    tasks: int | None = Field(
        None,
        ge=1,
        strict=True,
        description="number of ranks; default: one on each node; with a parallelism at least two, and one for each GPU; with actors one more than "
        "actors",
    )
    memory: MiB = 4096
    time: Seconds = 3600
    parallelism: Literal["none", "horovod", "native"] = Field(
        "none", description="how ranks average gradients: by Horovod, or by the framework's own means (native)"
    )
    exclusive: bool = Field(False, strict=True, description="whole nodes, which the cell shares with no other job")
    overcommit: bool = Field(
        False,
        strict=True,
        description="the ranks of a node share its `cpus` cores: for ranks that mostly wait (srun --overcommit)",
    )


def resource_fault(key: str, value: object) -> str | None:
    """Say what is wrong with the value of one resource; None if it is valid."""
    given: dict[str, Any] = {key: value}
    try:
        Resources.model_validate(given)
    except ValidationError as error:
        return in_words(error.errors()[0])
    return None


def averaging_ranks(gpus: int, nodes: int) -> int:
    """Return the default number of ranks that average gradients: at least two, one for each GPU, and one on each node."""
    return max(gpus, nodes, 2)


def settled(resources: Resources, point: Mapping[str, Any], hyperparameters: Mapping[str, Any] | None) -> Resources:
    """Return the resources of a point's cell: the study's, replaced by those that the point sets, with the number of ranks.

    Ranks that are not given are a learner and its actors, if the point or the workload's hyperparameters have actors.

    Args:
        hyperparameters: of built-in training; None: a command, whose `topology` and `actors` are its own.

    Raises:
        ValueError: the point's time or memory is invalid.
    """
    asked = {key: point[key] for key in RESOURCES if key in point}
    if "time" in asked:
        asked["time"] = parse_time(asked["time"])
    if "memory" in asked:
        asked["memory"] = parse_memory(asked["memory"])
    merged = resources.model_copy(update=asked)
    if merged.tasks is not None:
        return merged
    tasks = None if hyperparameters is None else ranks_with_actors({**hyperparameters, **point})
    if tasks is None:
        tasks = merged.nodes if merged.parallelism == "none" else averaging_ranks(merged.gpus, merged.nodes)
    return merged.model_copy(update={"tasks": tasks})
