"""The comparisons of your own runs that test a claim, one model for each kind, and the runs that they select."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from hpcrl.spec.resources import Model

Text = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
Measure = Literal[
    "training_time",
    "training_and_evaluation_time",
    "wall_time",
    "goal_time",
    "goal_wall_time",
    "final_score",
    "last_return",
    "cpu",
    "cpu_share",
    "memory",
    "machine_cpu",
    "machine_memory",
    "gpu",
    "gpu_memory",
    "energy",
    "goal_step",
    "cpu_per_step",
    "machine_cpu_per_step",
    "machine_memory_per_step",
    "memory_range",
    "machine_memory_range",
    "update_per_step",
    "stepping_time",
]
SCORES: tuple[Measure, ...] = ("final_score", "last_return")  # may be 0 or negative, and have no ratios


def _names(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Names = Annotated[
    tuple[Text, ...], BeforeValidator(_names, json_schema_input_type=str | list[str]), Field(min_length=1)
]


class Place(Model):
    """The resources that a paper means by the name of a place. A missing key matches any value.

    A place may also mean some studies only, such as those with one environment, and `settings` that the axes of a study set. A setting that
    is null is one that no axis sets.
    """

    device: Literal["cpu", "gpu"]
    parallelism: Literal["none", "horovod", "native"] | None = None
    cpus: int | None = Field(None, ge=1)
    gpus: int | None = Field(None, ge=0)
    tasks: int | None = Field(None, ge=1)
    nodes: int | None = Field(None, ge=1)
    study: Names | None = None
    settings: dict[Text, bool | int | float | str | None] = Field(
        {}, description="axis or setting: its value in the cells; null: no axis sets it there"
    )

    def has(self, config: Mapping[str, Any]) -> bool:
        """Tell whether a cell has the settings of this place."""
        return all(config.get(name) == value for name, value in self.settings.items())


class Selection(Model):
    """Some of the paper's configurations. A missing key means all values that the file lists.

    A claim that names no cluster is tested on each cluster alone.
    """

    framework: Names | None = None
    execution: Names | None = None
    algorithm: Names | None = None
    place: Names | None = None
    cluster: Names | None = None


class Reaches(Model):
    """Most runs of each configuration reach the score in an evaluation (`expected: all`), or few do (`none`)."""

    kind: Literal["reaches"]
    configurations: tuple[Selection, ...] = Field(min_length=1)
    score: float
    expected: Literal["all", "none"] = "all"


class Fails(Model):
    """Most runs of each configuration end without a result. A run that was cancelled, preempted or lost does not count."""

    kind: Literal["fails"]
    configurations: tuple[Selection, ...] = Field(min_length=1)


class Differs(Model):
    """Each configuration has less (or more) of a measure than the configuration that `than` replaces it by."""

    kind: Literal["less", "more"]
    measure: Measure
    this: Selection = Selection()
    than: Selection
    ratio: float | None = Field(None, gt=0, description="the paper's number: `this` divided by `than`")

    @model_validator(mode="after")
    def _ratios(self) -> Differs:
        if self.ratio is not None and self.measure in SCORES:
            raise ValueError("ratio: scores may be 0 and have none: leave it out, or use kind `within`")
        return self


class Same(Model):
    """Each configuration has the same of a measure as the configuration that `than` replaces it by, within a margin."""

    kind: Literal["same"]
    measure: Measure
    this: Selection = Selection()
    than: Selection
    within: float = Field(gt=0, description="percent: the largest difference that counts as none")

    @model_validator(mode="after")
    def _ratios(self) -> Same:
        if self.measure in SCORES:
            raise ValueError("measure: expected one with ratios; scores may be 0: use kind `within`")
        return self


class Within(Model):
    """A measure of each configuration is in a range."""

    kind: Literal["within"]
    measure: Measure
    configurations: tuple[Selection, ...] = Field(min_length=1)
    low: float | None = None
    high: float | None = None

    @model_validator(mode="after")
    def _range(self) -> Within:
        if self.low is None and self.high is None:
            raise ValueError("needs `low`, `high` or both")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"low: expected less than high ({self.high:g}), got {self.low:g}")
        return self


class Extreme(Model):
    """Some configurations have the minimum (or the maximum) of a measure among others."""

    kind: Literal["least", "most"]
    measure: Measure
    this: Selection
    among: Selection = Selection()


class Ranking(Model):
    """The order of the frameworks by a measure, lowest first, in each execution mode and place."""

    kind: Literal["ranking"]
    measure: Measure
    order: tuple[Text, ...] = Field(min_length=2)
    where: Selection = Selection()


class Untestable(Model):
    """No data of a dataset can test it."""

    kind: Literal["untestable"]
    why: Text


Test = Annotated[
    Reaches | Fails | Differs | Same | Within | Extreme | Ranking | Untestable, Field(discriminator="kind")
]


def selections(test: Model) -> Iterator[tuple[tuple[str | int, ...], Selection]]:
    """Return each selection of a test, with its place in the file."""
    for key, value in vars(test).items():
        if isinstance(value, Selection):
            yield (key,), value
        elif key == "configurations":
            yield from (((key, number), selection) for number, selection in enumerate(value))
