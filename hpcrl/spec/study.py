"""The study: its cells, their workload, and their resources. It names resources, never partitions."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from hpcrl.catalogue.registry import Algorithm, algorithms, frameworks
from hpcrl.chains import Chain
from hpcrl.errors import UsageError, suggestion, written
from hpcrl.placeholders import placeholders
from hpcrl.secrets import looks_secret, secret_among
from hpcrl.spec.axes import MAX_CELLS, Random, axis_faults, options
from hpcrl.spec.checks import Outcomes, assignments, computed_outcomes, study_faults
from hpcrl.spec.expectations import Expectation, expectation_faults
from hpcrl.spec.explain import Faults, Key
from hpcrl.spec.patterns import pattern_faults
from hpcrl.spec.quantities import Name
from hpcrl.spec.resources import RESOURCES as RESOURCES
from hpcrl.spec.resources import Model as Model
from hpcrl.spec.resources import Resources as Resources
from hpcrl.spec.resources import Scalar, settled
from hpcrl.spec.search import Search, search_faults
from hpcrl.spec.surroundings import EnvironmentOfStudy, surroundings_faults
from hpcrl.spec.training import training_faults

# Keys of a workload that are allowed with a command only.
_OF_COMMANDS = frozenset({"workdir", "copy_workdir", "start_in", "metrics", "launch", "prepare", "check"})


class MetricFiles(Model):
    """Where an unmodified program writes values: to files, which are read after its end, or to standard output.

    Paths are relative to the directory where the command starts, and may contain placeholders.
    """

    tensorboard: str | None = Field(None, min_length=1, description="a directory of TensorBoard event files")
    csv: str | None = Field(None, min_length=1, description="a CSV file with a header")
    step: str | None = Field(
        None, min_length=1, description="the CSV column with the step; default: one of the usual names"
    )
    wandb: str | None = Field(None, min_length=1, description="the directory of W&B's offline runs, such as wandb")
    stdout: dict[str, str] | None = Field(
        None,
        description="name: a regular expression with one group, the number; each match in a line of standard output is a "
        "value of that name; a group named `step` gives its step",
    )

    def paths(self) -> dict[str, str]:
        return {name: path for name in ("tensorboard", "csv", "wandb") if (path := getattr(self, name))}

    def faults(self, own_directory: bool) -> Iterator[tuple[Key, str]]:
        """Give the faults: nothing to read, or a file that two cells would share."""
        paths = self.paths()
        if not paths and self.stdout is None:
            yield ("metrics",), "name at least one of tensorboard, csv, wandb, stdout"
        for below, wrong in pattern_faults(self.stdout) if self.stdout is not None else ():
            yield ("metrics", "stdout", *below), wrong
        if self.step and not self.csv:
            yield ("metrics", "step"), "names a column of `csv`, which is missing: add `csv`, or remove `step`"
        for name, path in paths.items():
            if not own_directory and "cell" not in placeholders(path):
                yield (
                    ("metrics", name),
                    f"cells that run at the same time would share {path}: add `start_in: cell`, or {{cell}} to the path",
                )


# Plans, logs and reports hold the command line, and others read them.
_NO_SECRET = (
    "looks like a secret: remove it from the study, export it in your shell and let the program read the variable"
)


class Workload(Model):
    """Built-in training (`environment`, and `algorithm` here or as an axis) or any `command`."""

    algorithm: Name | None = Field(None, description="an algorithm of `hpcrl algorithm list`; or make it an axis")
    environment: str | None = Field(None, description="a Gymnasium environment id")
    environment_options: dict[str, Any] | None = Field(
        None, min_length=1, description="options of the environment; an axis of the same name replaces one"
    )
    max_episode_steps: int | None = Field(None, ge=1, strict=True)
    hyperparameters: dict[str, Any] = Field(
        {}, description="settings of the algorithm; an axis of the same name replaces one"
    )
    command: tuple[str, ...] | None = Field(
        None, description="argv; {axis}, {seed} and {cell} are replaced by the cell's values"
    )
    prepare: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="argv of a step before `command`, such as compiling; the same placeholders as in `command`",
    )
    check: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="argv of a step after a successful `command`; it checks the result",
    )
    env: dict[str, str] = Field({}, description="environment variables; values may contain {axis}, too")
    workdir: str | None = Field(
        None,
        min_length=1,
        description="the directory of the code, where commands start: absolute, or relative to the study's directory; default: the study's "
        "directory. {workdir} in a command names it",
    )
    copy_workdir: bool = Field(
        False, description="copy `workdir` into the plan, so that later changes do not change what runs"
    )
    start_in: Literal["workdir", "cell"] = Field(
        "workdir",
        description="`cell`: each cell starts in its own directory, which is empty at first; {workdir} is the directory of the code",
    )
    metrics: MetricFiles | None = Field(None, description="where the program itself writes values")
    launch: Literal["mpi"] | None = Field(
        None,
        description="`mpi`: the cell's tasks are the ranks of one MPI program, started by srun, or without Slurm by mpirun; default: "
        "the tasks are independent processes",
    )
    on_warning: Literal["USR2", "TERM", "none"] | None = Field(
        None,
        description="the signal to send to a command before its time limit, so that it saves its state; default: none",
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Workload:
        if (self.command is None) == (self.algorithm is None and self.environment is None):
            raise ValueError("expected either `algorithm` (built-in training) or `command` (your own program)")
        if self.command is not None and not self.command:
            raise ValueError("`command` is empty: name at least the program")
        if faults := list(self._faults()):
            raise Faults(faults)
        return self

    @property
    def trains(self) -> bool:
        """Tell whether this is built-in training."""
        return self.command is None

    def _faults(self) -> Iterator[tuple[Key, str]]:
        for step, words in self.steps().items():
            if found := secret_among(words):
                yield (step,), f"{found} {_NO_SECRET}"
        if self.trains:
            if self.algorithm is not None and self.algorithm not in algorithms():
                yield ("algorithm",), f"no algorithm {self.algorithm!r}; {suggestion(self.algorithm, algorithms())}"
            if self.environment is None:
                yield (), "`environment` is missing: name a Gymnasium environment such as CartPole-v1"
            if self.on_warning is not None:
                yield (
                    ("on_warning",),
                    "`on_warning` is for commands: built-in training always saves its state on USR2",
                )
            for key in sorted(_OF_COMMANDS & self.model_fields_set):
                yield (
                    (key,),
                    f"`{key}` is for commands: remove it, because built-in training neither reads nor writes your files",
                )
        elif self.environment_options is not None:
            yield (
                ("environment_options",),
                "`environment_options` is for built-in training: remove it, and pass options to the command",
            )
        if self.metrics:
            yield from self.metrics.faults(self.start_in == "cell")
        for name, value in self.env.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                yield ("env", name), f"{name!r} is not a valid name of a variable"
            if looks_secret(name):
                yield ("env", name), f"{name} looks like a secret: remove it from the study and export it in your shell"
            if found := secret_among([value]):
                yield ("env", name), f"{found} {_NO_SECRET}"
            if "\0" in value:
                yield ("env", name), f"the value of {name} contains a NUL character"

    def warning(self) -> str | None:
        """Return the signal to send before the time limit: USR2 to built-in training, `on_warning` to a command."""
        if self.trains:
            return "USR2"
        return None if self.on_warning in (None, "none") else self.on_warning

    def steps(self) -> dict[str, tuple[str, ...]]:
        """Return the command lines of a cell by their names, in their order."""
        return {"prepare": self.prepare or (), "command": self.command or (), "check": self.check or ()}

    def placeholders(self) -> set[str]:
        return {name for _, text in self.texts() for name in placeholders(text)}

    def texts(self) -> Iterator[tuple[Key, str]]:
        """Give every text that may contain placeholders, with its place."""
        for step, words in self.steps().items():
            for index, word in enumerate(words):
                yield (step, index), word
        for name, text in self.env.items():
            yield ("env", name), text
        for name, path in (self.metrics.paths() if self.metrics else {}).items():
            yield ("metrics", name), path


class Rule(Model):
    """A partial cell: it matches every cell that agrees with it. A list means any of its values."""

    model_config = ConfigDict(frozen=True, extra="allow")

    def matches(self, values: dict[str, Any]) -> bool:
        wanted = self.model_extra or {}
        return all(
            values.get(key) in each if isinstance(each, list) else values.get(key) == each
            for key, each in wanted.items()
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
    return value


def _factor(value: Any) -> float:
    if not isinstance(value, str) or not (match := re.fullmatch(r"x(\d{1,3}(?:\.\d{1,6})?)", value.strip())):
        raise ValueError(f'"{value}" is not a factor; try x2 or x1.5')
    if not 1 < float(match[1]) <= 10:
        raise ValueError(f'"{value}" is not a factor between x1 and x10; try x2 or x1.5')
    return float(match[1])


Factor = Annotated[
    float, BeforeValidator(_factor, json_schema_input_type=Annotated[str, Field(pattern=r"^x[0-9]+(\.[0-9]+)?$")])
]


class Again(Model):
    """How a cell that ended for one cause runs again: factors for time and memory, and the maximum number of attempts."""

    time: Factor | None = Field(None, description="factor for the time limit, such as x2")
    memory: Factor | None = Field(None, description="factor for the memory, such as x1.5")
    at_most: int = Field(1, ge=0, le=100, strict=True, description="maximum number of further attempts for this cause")


class AgainElsewhere(Again):
    exclude_node: bool = Field(False, description="whether the next attempt avoids the node that failed")


class Retry(Model):
    """What `hpcrl submit --retry` runs again, by cause. A cause without an entry is not retried."""

    timeout: Again | None = None
    oom: Again | None = None
    node_fail: AgainElsewhere | None = None
    preempted: Again | None = None
    failed: Again | None = None


def _notify(value: Any) -> Any:
    if isinstance(value, str):
        if not re.fullmatch(r"https?://[^\s@]+", value):
            raise ValueError(
                f'"{value}" is not an http(s) URL without a user name; write a command as a list: [mail, -s, hpcrl, me@example.org]'
            )
        if found := secret_among([value]):
            raise ValueError(f"{found} {_NO_SECRET}")
        return value
    if not isinstance(value, list | tuple) or not value or not all(isinstance(word, str) for word in value):
        raise ValueError(
            "expected an http(s) URL, or a command as a list of words, such as [mail, -s, hpcrl, me@example.org]"
        )
    if any("\0" in word for word in value):
        raise ValueError("a word of the command contains a NUL character")
    if found := secret_among(value):
        raise ValueError(f"{found} {_NO_SECRET}")
    return tuple(value)


Notify = Annotated[
    str | tuple[str, ...],
    BeforeValidator(_notify, json_schema_input_type=str | Annotated[list[str], Field(min_length=1)]),
]


def read_notify(text: str) -> Notify:
    """Read `notify` from a command line: a URL, or a command line.

    Raises:
        UsageError: it is neither.
    """
    try:
        value = text if re.match(r"https?://", text) else shlex.split(text)
        return TypeAdapter[Notify](Notify).validate_python(value)
    except ValidationError as error:
        raise UsageError(f"--notify: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None
    except ValueError as error:
        raise UsageError(f"--notify: {text!r} is not a command line: {error}") from None


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
        description="software environment of every cell: a name, `none`, or an existing one; default: the cell's framework",
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
    tensorboard: Literal["none", "during", "after"] = Field(
        "none",
        description="TensorBoard events of built-in training: written after the last measurement of a cell, or during training, as a part of "
        "what is measured",
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

    @model_validator(mode="after")
    def _whole(self) -> Study:
        trains = self.workload.trains
        expected = expectation_faults(self.expect or {}, trains)
        faults = list(axis_faults(self)) or [*study_faults(self), *training_faults(self)]
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
        """Return a point with the defaults that a cell must show: the framework's execution mode, and events during training.

        A cell that writes events while it is measured is another cell than the one that does not.
        """
        framework = frameworks().get(str(point.get("framework"))) if self.workload.trains else None
        if framework and self.tensorboard == "during":
            point = {**point, "tensorboard": point.get("tensorboard", self.tensorboard)}
        if framework is None or "execution" in point:
            return point
        found: dict[str, Any] = {}
        for key, value in point.items():
            found[key] = value
            if key == "framework":
                found["execution"] = framework.default_mode
        return found

    def algorithm_of(self, point: Mapping[str, Any]) -> Algorithm | None:
        """Return the algorithm of a point of the matrix; None without built-in training, or if there is no such algorithm."""
        return algorithms().get(str(point.get("algorithm", self.workload.algorithm))) if self.workload.trains else None

    def algorithms(self) -> list[Algorithm]:
        """Return the algorithms that the study trains."""
        points = [option.values for axis in options(self) for option in axis] + [dict(extra) for extra in self.include]
        found = [self.algorithm_of(point) for point in points if "algorithm" in point] or [self.algorithm_of({})]
        return list({each.name: each for each in found if each}.values())

    def known_hyperparameters(self, algorithm: Algorithm | None) -> dict[str, Any]:
        """Return the hyperparameters that no axis sets: the workload's, and the algorithm's defaults."""
        defaults = {each.name: each.default for each in fields(algorithm.settings)} if algorithm else {}
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

        asked = settled(self.resources, point, self.workload.hyperparameters).model_dump(exclude_none=True)
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
