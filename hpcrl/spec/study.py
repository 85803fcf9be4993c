"""The study: which cells there are, what each runs, and what it asks for. It names resources, never partitions."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
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

from hpcrl.catalogue.registry import algorithms, frameworks
from hpcrl.errors import UsageError, suggestion
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
from hpcrl.spec.training import training_faults

# What a workload may say of a command only.
_OF_COMMANDS = frozenset({"workdir", "copy_workdir", "start_in", "metrics", "launch", "prepare", "check"})


class MetricFiles(Model):
    """Values that an unmodified program writes: into files, which are read when it has ended, or on its standard output.

    Paths are relative to where the command starts, and may hold placeholders.
    """

    tensorboard: str | None = Field(None, min_length=1, description="a directory of TensorBoard event files")
    csv: str | None = Field(None, min_length=1, description="a CSV file with a header")
    step: str | None = Field(
        None, min_length=1, description="the CSV column that counts steps; default: one of the usual names"
    )
    wandb: str | None = Field(None, min_length=1, description="the directory where W&B keeps its offline runs: wandb")
    stdout: dict[str, str] | None = Field(
        None,
        description="name: a regular expression with one group, the number; each match in a line of the command's standard output is a "
        "value of that name, with the step that a group named `step` gives",
    )

    def paths(self) -> dict[str, str]:
        return {name: path for name in ("tensorboard", "csv", "wandb") if (path := getattr(self, name))}

    def faults(self, own_directory: bool) -> Iterator[tuple[Key, str]]:
        """Give what is wrong: nothing to read, or a file that two cells can have."""
        paths = self.paths()
        if not paths and self.stdout is None:
            yield ("metrics",), "name at least one of tensorboard, csv, wandb, stdout"
        for below, wrong in pattern_faults(self.stdout) if self.stdout is not None else ():
            yield ("metrics", "stdout", *below), wrong
        if self.step and not self.csv:
            yield ("metrics", "step"), "is a column of `csv`, and there is none"
        for name, path in paths.items():
            if not own_directory and "cell" not in placeholders(path):
                yield (
                    ("metrics", name),
                    f"cells that run side by side would share {path}: add `start_in: cell`, or {{cell}} to the path",
                )


# Plans, logs and reports hold the command line, and others read them.
_NO_SECRET = (
    "looks like a secret: export it in your shell and let the program read the variable, never write it into a study"
)


class Workload(Model):
    """Built-in training (`algorithm` and `environment`) or any `command`."""

    algorithm: Name | None = None
    environment: str | None = Field(None, description="a Gymnasium environment id")
    max_episode_steps: int | None = Field(None, ge=1)
    hyperparameters: dict[str, Any] = Field({}, description="of the algorithm; an axis of the same name comes first")
    command: tuple[str, ...] | None = Field(
        None, description="argv; {axis}, {seed} and {cell} are replaced by the cell's values"
    )
    prepare: tuple[str, ...] | None = Field(
        None, min_length=1, description="argv of a step before `command`, such as compiling; placeholders as there"
    )
    check: tuple[str, ...] | None = Field(
        None,
        min_length=1,
        description="argv of a step after a `command` that ended well: it tells whether the result is right",
    )
    env: dict[str, str] = Field({}, description="environment variables; values may hold {axis} too")
    workdir: str | None = Field(
        None,
        min_length=1,
        description="the directory of the code, where commands start: relative to the study's directory, or absolute; default: the study's "
        "directory. {workdir} in a command names it",
    )
    copy_workdir: bool = Field(
        False, description="copy `workdir` into the plan, so that later changes do not change what runs"
    )
    start_in: Literal["workdir", "cell"] = Field(
        "workdir",
        description="`cell`: each cell starts in a directory of its own, empty at first; {workdir} names the code's",
    )
    metrics: MetricFiles | None = Field(None, description="files with values that the program writes by itself")
    launch: Literal["mpi"] | None = Field(
        None,
        description="`mpi`: the cell's tasks are the ranks of one MPI program, started by srun, or without Slurm by mpirun; default: "
        "tasks are processes that know nothing of each other",
    )
    on_warning: Literal["USR2", "TERM", "none"] | None = Field(
        None, description="the signal that a command takes before its time limit, to save its state; default: none"
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Workload:
        if (self.command is None) == (self.algorithm is None):
            raise ValueError("give either `algorithm` (built-in training) or `command` (your own program)")
        if self.command is not None and not self.command:
            raise ValueError("`command` is empty: give at least the program")
        if faults := list(self._faults()):
            raise Faults(faults)
        return self

    def _faults(self) -> Iterator[tuple[Key, str]]:
        for step, words in self.steps().items():
            if found := secret_among(words):
                yield (step,), f"{found} {_NO_SECRET}"
        if self.algorithm is not None:
            if self.algorithm not in algorithms():
                yield ("algorithm",), f"no algorithm {self.algorithm!r}; {suggestion(self.algorithm, algorithms())}"
            if self.environment is None:
                yield (), "`environment` is missing: name a Gymnasium environment such as CartPole-v1"
            if self.on_warning is not None:
                yield (
                    ("on_warning",),
                    "`on_warning` is for commands: built-in training always saves its state on USR2",
                )
            for key in sorted(_OF_COMMANDS & self.model_fields_set):
                yield (key,), f"`{key}` is for commands: built-in training reads and writes no files of yours"
        if self.metrics:
            yield from self.metrics.faults(self.start_in == "cell")
        for name, value in self.env.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                yield ("env", name), f"{name!r} is not a variable's name"
            if looks_secret(name):
                yield ("env", name), f"{name} looks like a secret: export it in your shell, never in a study"
            if found := secret_among([value]):
                yield ("env", name), f"{found} {_NO_SECRET}"
            if "\0" in value:
                yield ("env", name), f"the value of {name} holds a NUL character"

    def warning(self) -> str | None:
        """Return the signal to send before the time limit: USR2 to built-in training, to a command what it takes."""
        if self.algorithm is not None:
            return "USR2"
        return None if self.on_warning in (None, "none") else self.on_warning

    def steps(self) -> dict[str, tuple[str, ...]]:
        """Return the command lines of a cell by their names, in their order."""
        return {"prepare": self.prepare or (), "command": self.command or (), "check": self.check or ()}

    def placeholders(self) -> set[str]:
        return {name for _, text in self.texts() for name in placeholders(text)}

    def texts(self) -> Iterator[tuple[Key, str]]:
        """Give every text that may hold placeholders, with its place."""
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
            raise ValueError("a study needs at least one seed: give a number from 1 on, or a list of seeds")
        if value > MAX_CELLS:
            raise ValueError(f"expected at most {MAX_CELLS:,} seeds, got {value:,}")
        return list(range(1, value + 1))
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
    """How a cell that ended for one cause runs again: with how much more time and memory, and how often at most."""

    time: Factor | None = Field(None, description="what multiplies the time limit, such as x2")
    memory: Factor | None = Field(None, description="what multiplies the memory, such as x1.5")
    at_most: int = Field(1, ge=0, le=100, strict=True, description="further attempts for this cause")


class AgainElsewhere(Again):
    exclude_node: bool = Field(False, description="whether the node that failed is left out")


class Retry(Model):
    """What `hpcrl submit --retry` runs again, by cause; a cause that is not named is not retried."""

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
        raise ValueError("a word of the command holds a NUL character")
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
    """What the report of a study needs to tell weak scaling from strong."""

    size: Annotated[
        tuple[str, ...], Field(min_length=1), BeforeValidator(_keys, json_schema_input_type=str | list[str])
    ] = Field(
        description="the axes whose product is the work of a cell: cells of equal size on more cores are strong scaling, cells of equal "
        "size for each core are weak scaling"
    )


class Study(Model):
    name: Name
    title: str
    paper: str | None = None
    workload: Workload
    axes: dict[str, tuple[Scalar | dict[str, Scalar], ...]] = Field(
        {},
        description="axis: values; a value that is a mapping sets several keys at once; without axes, a study has the cells of "
        "`include`, or one cell for each seed",
    )
    zip: tuple[dict[str, tuple[Scalar, ...]], ...] | None = Field(
        None,
        description="further axes, of keys whose values go together: each mapping is one axis, key: values, all equally many",
    )
    random: Random | None = Field(None, description="one more axis, of points that are drawn at random")
    computed: dict[str, str] | None = Field(
        None,
        description="key: an expression over the cell's other values (axes, resources, seed, hyperparameters), such as tasks * batch_size",
    )
    include: tuple[dict[str, Scalar], ...] = ()
    exclude: tuple[Rule, ...] = ()
    seeds: Seeds = (1,)
    resources: Resources = Resources()
    environment: Name | None = Field(
        None, description="software environment of every cell; default: the cell's framework"
    )
    chain: Literal["parallel", "sequential", "staged"] = "staged"
    max_parallel: int | None = Field(None, ge=1, description="array tasks that run at once")
    placement: dict[Name, Pin] = Field({}, description="cluster: a partition or QOS fixed by hand")
    retry: Retry = Field(Retry(), description="what `hpcrl submit --retry` runs again, by cause")
    notify: Notify | None = Field(
        None, description="what gets the summary at the end, as JSON: a command (a list of words) on stdin, or a URL"
    )
    goal: float | None = Field(
        None, description="the return that counts as solved, once episodes from 30 other starts confirm it"
    )
    score: str | None = Field(
        None, min_length=1, description="the reported value that a command's runs are compared by; default: its return"
    )
    better: Literal["higher", "lower"] | None = Field(
        None, description="which values of `score` are better; default: higher ones"
    )
    scaling: Scaling | None = Field(
        None, description="which axes are the size of the problem, for weak scaling; strong scaling needs no word"
    )
    expect: dict[str, Expectation] | None = Field(
        None,
        description="what the last reported value of a name should be: `{value: 25000, within: 5 %}`, `{at_least: X}`, `{at_most: Y}`; "
        "a run that ended well and has another one has failed",
    )
    precise_phases: bool = Field(
        False, description="wait for the device after every update, so that no phase does another's work"
    )
    sample_interval: float = Field(
        1.0, ge=0.05, le=3600, description="seconds between samples of machine, processes, GPUs"
    )
    calibration_seconds: float = Field(
        10.0, ge=0, le=600, description="how long the first cell on each node measures how fast the node is; 0: not"
    )

    @model_validator(mode="after")
    def _whole(self) -> Study:
        trains = self.workload.algorithm is not None
        expected = expectation_faults(self.expect or {}, trains)
        faults = list(axis_faults(self)) or [*study_faults(self), *training_faults(self)]
        if faults := [*faults, *expected]:
            raise Faults(faults)
        return self

    @cached_property
    def drawn(self) -> list[dict[str, Scalar]]:
        """The points of `random`."""
        return self.random.drawn() if self.random else []

    @cached_property
    def outcomes(self) -> Outcomes:
        """What the expressions of `computed` come to in the cells, and which come to nothing."""
        return computed_outcomes(self)

    def stops_at_goal(self) -> Key | None:
        """Return where it says that some cells end where they reach the goal, None where nothing does."""
        if self.workload.hyperparameters.get("stop_at_goal"):
            return ("workload", "hyperparameters", "stop_at_goal")
        return next((path for path, key, value in assignments(self) if key == "stop_at_goal" and value), None)

    def with_defaults(self, point: dict[str, Any]) -> dict[str, Any]:
        """Return a point with the defaults that a cell must show: the framework's execution mode."""
        framework = frameworks().get(str(point.get("framework"))) if self.workload.algorithm else None
        if framework is None or "execution" in point:
            return point
        found: dict[str, Any] = {}
        for key, value in point.items():
            found[key] = value
            if key == "framework":
                found["execution"] = framework.default_mode
        return found

    def known_hyperparameters(self) -> dict[str, Any]:
        """Return the hyperparameters of every cell that no axis sets: the workload's, and the algorithm's defaults."""
        algorithm = algorithms().get(self.workload.algorithm or "")
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

        asked = settled(self.resources, point).model_dump(exclude_none=True)
        return computed_values(self.computed, {**self.known_hyperparameters(), **point, **asked, "seed": seed})

    def excludes(self, values: dict[str, Any]) -> bool:
        """Tell whether a rule takes out the cell of these values; rules that name seeds count only where a seed is given."""
        return any(
            rule.matches(values) for rule in self.exclude if "seed" in values or "seed" not in (rule.model_extra or {})
        )

    def factors(self) -> set[str]:
        """Return every key that the axes, the included cells and the computed values set."""
        keys = {key for axis in options(self) for option in axis for key in option.values}
        return keys | {key for extra in self.include for key in extra} | set(self.computed or {})
