"""The study: its cells, their workload, and their resources. It names resources, never partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from hpcrl.catalogue.registry import Algorithm, algorithms, frameworks
from hpcrl.chains import Chain
from hpcrl.errors import written
from hpcrl.profilers import FROM, NONE, STEPS
from hpcrl.profilers import KEY as PROFILE
from hpcrl.profilers import LIMIT as PROFILE_LIMIT
from hpcrl.profilers import NAMES as PROFILER_NAMES
from hpcrl.spec.axes import MAX_CELLS, Random, axis_faults, options
from hpcrl.spec.checks import Outcomes, Tracking, assignments, computed_outcomes, study_faults
from hpcrl.spec.expectations import Expectation, expectation_faults
from hpcrl.spec.explain import Faults, Key
from hpcrl.spec.notify import Notify
from hpcrl.spec.profile import profile_faults
from hpcrl.spec.quantities import MiB, Name
from hpcrl.spec.resources import Model, Resources, Scalar, settled
from hpcrl.spec.retry import Retry
from hpcrl.spec.search import Search, search_faults
from hpcrl.spec.surroundings import EnvironmentOfStudy, surroundings_faults
from hpcrl.spec.training import training_faults
from hpcrl.spec.workload import Workload


class Rule(Model):
    """A partial cell: it matches every cell that agrees with it. A list means any of its values."""

    model_config = ConfigDict(frozen=True, extra="allow")

    def matches(self, values: dict[str, Any]) -> bool:
        wanted = self.model_extra or {}
        return all(
            values.get(key) in choice if isinstance(choice, list) else values.get(key) == choice
            for key, choice in wanted.items()
        )


class Pin(Model):
    """A placement fixed by hand for one cluster."""

    partition: Name | None = None
    qos: Name | None = None


def _seeds(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise ValueError("expected a number of at least 1, or a list of seeds")
        if value > MAX_CELLS:
            raise ValueError(f"expected at most {MAX_CELLS:,} seeds, got {value:,}")
        return list(range(1, value + 1))
    if not isinstance(value, list | tuple):
        raise ValueError(f"expected a number of seeds or a list of them, got {written(value)}")
    if not value:
        raise ValueError("expected a number of at least 1, or a list with at least one seed, got []")
    return value


Seeds = Annotated[
    tuple[Annotated[int, Field(ge=0, lt=2**63)], ...], BeforeValidator(_seeds, json_schema_input_type=int | list[int])
]


def _keys(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


class Scaling(Model):
    """The axes that give the size of the problem. With them the report finds weak scaling."""

    size: Annotated[
        tuple[str, ...], Field(min_length=1), BeforeValidator(_keys, json_schema_input_type=str | list[str])
    ] = Field(
        description="the axes whose product is the size of a cell's problem; strong scaling: cells of equal size on more cores; weak "
        "scaling: cells of equal size per core"
    )


class Study(Model):
    name: Name
    title: str
    paper: str | None = None
    workload: Workload
    axes: dict[str, tuple[Scalar | dict[str, Scalar], ...]] = Field(
        {},
        description="axis: values; a value that is a mapping sets several keys together; a study without axes has the cells of "
        "`include`, or one cell for each seed",
    )
    zip: tuple[dict[str, tuple[Scalar, ...]], ...] | None = Field(
        None,
        description="further axes of several keys whose values belong together: each mapping `key: values` is one axis; all its lists have the same length",
    )
    random: Random | None = Field(None, description="one more axis, with points drawn at random")
    computed: dict[str, str] | None = Field(
        None,
        description="key: an expression over the cell's other values (axes, resources, seed, hyperparameters), such as tasks * batch_size",
    )
    search: Search | None = Field(None, description="a search for hyperparameters with Optuna: its trials are cells")
    include: tuple[dict[str, Scalar], ...] = ()
    exclude: tuple[Rule, ...] = ()
    seeds: Seeds = (1,)
    resources: Resources = Resources()
    environment: EnvironmentOfStudy | None = Field(
        None,
        description="software environment of every cell: a name, `none`, or an existing one; default: that of the cell's framework and `stepping`",
    )
    chain: Chain = "staged"
    one_job_per: Literal["environment", "resources"] = Field(
        "environment",
        description="`resources`: the cells of several software environments share a job where they ask for the same resources",
    )
    max_parallel: int | None = Field(None, ge=1, strict=True, description="array tasks that run at once")
    placement: dict[Name, Pin] = Field({}, description="cluster: the partition or QOS to use there")
    retry: Retry = Field(Retry(), description="what `hpcrl submit --retry` runs again, by cause")
    notify: Notify | None = Field(
        None,
        description="receiver of the summary (JSON) at the end: a command (a list of words), which reads it from stdin, or a URL",
    )
    goal: float | None = Field(
        None,
        strict=True,
        description="the return that counts as solved, after episodes from 30 other starts confirm it",
    )
    score: str | None = Field(
        None,
        min_length=1,
        description="the reported value by which the runs of a command are compared; default: its return",
    )
    better: Literal["higher", "lower"] | None = Field(
        None, description="whether higher or lower values of `score` are better; default: higher"
    )
    scaling: Scaling | None = Field(
        None, description="the axes that are the size of the problem, for weak scaling; strong scaling does not need it"
    )
    expect: dict[str, Expectation] | None = Field(
        None,
        description="name: the expected last reported value: `{value: 25000, within: 5 %}`, `{at_least: X}`, `{at_most: Y}`; "
        "a run with another value has failed",
    )
    precise_phases: bool = Field(
        False, description="wait for the device after every update, so that each phase includes its own work only"
    )
    profile: str = Field(
        NONE,
        json_schema_extra={"enum": list(PROFILER_NAMES)},
        description="the profiler that every cell runs under; profiled cells are other cells, whose times are compared with no others",
    )
    profile_from: int = Field(
        0,
        ge=0,
        strict=True,
        description="the environment step of built-in training at which the profiler begins",
    )
    profile_steps: int = Field(
        0,
        ge=0,
        strict=True,
        description="for how many environment steps the profiler looks; 0: until the training ends",
    )
    profile_limit: MiB = Field(
        PROFILE_LIMIT,
        description="maximum size of the file of one profile; a larger one is not kept, and the cell goes on",
    )
    tensorboard: Literal["none", "during", "after"] = Field(
        "none",
        description="TensorBoard events of built-in training: written after the last measurement of a cell, or during training, as a part of "
        "what is measured",
    )
    tracking: Tracking = Field(
        "none",
        description="values of built-in training sent to a server of MLflow (the variable MLFLOW_TRACKING_URI) while a cell trains: from a "
        "process beside the training, or one by one in its loop, to measure what that costs",
    )
    agents: Literal["numpy", "framework", "none"] = Field(
        "numpy",
        description="which files of its trained agents, the best and the last one, a cell of built-in training leaves in the plan: "
        "NumPy's, the framework's own beside them, or none",
    )
    sample_interval: float = Field(
        1.0, ge=0.05, le=3600, strict=True, description="seconds between samples of machine, processes, GPUs"
    )
    calibration_seconds: float = Field(
        10.0,
        ge=0,
        le=600,
        strict=True,
        description="seconds for which the first cell on each node measures the node's speed; 0: no measurement",
    )

    idle_seconds: float = Field(
        10.0,
        ge=0,
        le=600,
        strict=True,
        description="seconds for which the first cell on each node measures CPU and memory of the idle machine; 0: no measurement",
    )

    @field_validator("profile", mode="before")
    @classmethod
    def _one_profiler(cls, value: object) -> object:
        if isinstance(value, list):
            raise ValueError("expected one profiler; to run cells under several, make it an axis, as in `profile: [none, cprofile]` below `axes`")  # fmt: skip
        return value

    @model_validator(mode="after")
    def _whole(self) -> Study:
        trains = self.workload.trains
        expected = expectation_faults(self.expect or {}, trains)
        faults = list(axis_faults(self)) or [*study_faults(self), *training_faults(self), *profile_faults(self)]
        if faults := [*faults, *search_faults(self), *surroundings_faults(self), *expected]:
            raise Faults(faults)
        return self

    @cached_property
    def drawn(self) -> list[dict[str, Scalar]]:
        """The points of `random`."""
        return self.random.drawn() if self.random else []

    @cached_property
    def outcomes(self) -> Outcomes:
        """The values of the `computed` expressions in the cells, and the faults of those without a value."""
        return computed_outcomes(self)

    def stops_at_goal(self) -> Key | None:
        """Return the place of the setting that ends cells at the goal; None if there is none."""
        if self.workload.hyperparameters.get("stop_at_goal"):
            return ("workload", "hyperparameters", "stop_at_goal")
        return next((path for path, key, value in assignments(self) if key == "stop_at_goal" and value), None)

    def with_defaults(self, point: dict[str, Any]) -> dict[str, Any]:
        """Return a point with the defaults that a cell must show: the framework's execution mode, events during training, the profiler, tracking.

        A cell that writes events while it is measured is another cell than the one that does not.
        """
        if self.profile != NONE:
            point = {**point, PROFILE: point.get(PROFILE, self.profile)}
        if point.get(PROFILE, NONE) != NONE:
            window = {FROM: self.profile_from, STEPS: self.profile_steps}
            point = {**{name: steps for name, steps in window.items() if steps}, **point}
        if self.tracking != "none":
            point = {**point, "tracking": point.get("tracking", self.tracking)}
        framework = frameworks().get(str(point.get("framework"))) if self.workload.trains else None
        if framework and self.tensorboard == "during":
            point = {**point, "tensorboard": point.get("tensorboard", self.tensorboard)}
        if framework is None or "execution" in point:
            return point
        result: dict[str, Any] = {}
        for key, value in point.items():
            result[key] = value
            if key == "framework":
                result["execution"] = framework.default_mode
        return result

    def algorithm_of(self, point: Mapping[str, Any]) -> Algorithm | None:
        """Return the algorithm of a point of the matrix; None without built-in training, or if there is no such algorithm."""
        return algorithms().get(str(point.get("algorithm", self.workload.algorithm))) if self.workload.trains else None

    def algorithms(self) -> list[Algorithm]:
        """Return the algorithms that the study trains."""
        used = [self.algorithm_of({"algorithm": name}) for name in self._values("algorithm")] or [self.algorithm_of({})]
        return list({algorithm.name: algorithm for algorithm in used if algorithm}.values())

    def environment_id(self, point: Mapping[str, Any]) -> str:
        """Return the Gymnasium environment of a point of the matrix, "" if it has none."""
        named = point.get("environment", self.workload.environment)
        return named if isinstance(named, str) else ""

    def environment_ids(self) -> list[str]:
        """Return the Gymnasium environments of a training study."""
        named = [self.environment_id({"environment": value}) for value in self._values("environment")]
        return list(dict.fromkeys(named)) or [self.environment_id({})]

    def _values(self, key: str) -> list[Scalar]:
        """Return the values that the axes and the included cells set for a key."""
        points = [option.values for axis in options(self) for option in axis] + [dict(extra) for extra in self.include]
        return [point[key] for point in points if key in point]

    def known_hyperparameters(self, algorithm: Algorithm | None) -> dict[str, Any]:
        """Return the hyperparameters that no axis sets: the workload's, and the algorithm's defaults."""
        defaults = {field.name: field.default for field in fields(algorithm.settings)} if algorithm else {}
        known = {**defaults, **self.workload.hyperparameters}
        return {name: value for name, value in known.items() if isinstance(value, str | int | float)}

    def computed_of(self, point: dict[str, Any], seed: int) -> dict[str, Scalar]:
        """Return the computed values of the cell of a point and a seed. Memory is in MiB and time in seconds.

        Raises:
            ComputeError: an expression has no value.
            UsageError, ValueError: a resource of the point is wrong.
        """
        if not self.computed:
            return {}
        from hpcrl.spec.computed import computed_values

        asked = settled(self.resources, point, self.workload.trained_with).model_dump(exclude_none=True)
        return computed_values(
            self.computed, {**self.known_hyperparameters(self.algorithm_of(point)), **point, **asked, "seed": seed}
        )

    def excludes(self, values: dict[str, Any]) -> bool:
        """Tell whether a rule excludes the cell of these values. Rules with seeds apply only if a seed is given."""
        return any(
            rule.matches(values) for rule in self.exclude if "seed" in values or "seed" not in (rule.model_extra or {})
        )

    def factors(self) -> set[str]:
        """Return every key that the axes, the included cells and the computed values set."""
        keys = {key for axis in options(self) for option in axis for key in option.values}
        return keys | {key for extra in self.include for key in extra} | set(self.computed or {})
