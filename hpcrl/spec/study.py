"""The study: which cells there are, what each runs, and what it asks for. It names resources, never partitions."""

from __future__ import annotations

import re
import shlex
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from hpcrl.errors import UsageError, suggestion
from hpcrl.secrets import looks_secret, secret_among
from hpcrl.spec.quantities import MiB, Name, Seconds, parse_memory, parse_time

Scalar = str | int | float | bool
# Axis names that are resources; every other axis configures the workload.
RESOURCES = ("cpus", "gpus", "gpu_type", "nodes", "tasks", "memory", "time", "parallelism")
ALGORITHMS = ("dqn",)
FRAMEWORKS = {
    "numpy": ("eager",),
    "torch": ("eager", "lazy"),
    "tensorflow": ("eager", "lazy", "xla"),
    "jax": ("eager", "lazy", "fused"),
    "mxnet": ("eager", "lazy"),
}
# How several ranks may train one agent, besides not at all.
PARALLELISM = {
    "numpy": (),
    "torch": ("horovod", "native"),
    "tensorflow": ("horovod",),
    "jax": ("horovod", "native"),
    "mxnet": ("horovod",),
}
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


class Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


# Plans, logs and reports hold the command line, and others read them.
_NO_SECRET = (
    "looks like a secret: export it in your shell and let the program read the variable, never write it into a study"
)


class Workload(Model):
    """Built-in training (`algorithm` and `environment`) or any `command`."""

    algorithm: Name | None = None
    environment: str | None = Field(None, description="a Gymnasium environment id")
    max_episode_steps: int | None = Field(None, ge=1)
    hyperparameters: dict[str, Any] = {}
    command: tuple[str, ...] | None = Field(
        None, description="argv; {axis}, {seed} and {cell} are replaced by the cell's values"
    )
    env: dict[str, str] = Field({}, description="environment variables; values may hold {axis} too")
    on_warning: Literal["USR2", "TERM", "none"] | None = Field(
        None, description="the signal that a command takes before its time limit, to save its state; default: none"
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Workload:
        if (self.command is None) == (self.algorithm is None):
            raise ValueError("give either `algorithm` (built-in training) or `command` (your own program)")
        if self.command is not None and not self.command:
            raise ValueError("`command` is empty: give at least the program")
        if found := secret_among(self.command or ()):
            raise ValueError(f"command: {found} {_NO_SECRET}")
        if self.algorithm is not None and self.algorithm not in ALGORITHMS:
            raise ValueError(f"no algorithm {self.algorithm!r}; {suggestion(self.algorithm, ALGORITHMS)}")
        if self.algorithm is not None and self.environment is None:
            raise ValueError("`environment` is missing: name a Gymnasium environment such as CartPole-v1")
        if self.algorithm is not None and self.on_warning is not None:
            raise ValueError("`on_warning` is for commands: built-in training always saves its state on USR2")
        for name, value in self.env.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise ValueError(f"env: {name!r} is not a variable's name")
            if looks_secret(name):
                raise ValueError(f"env: {name} looks like a secret: export it in your shell, never in a study")
            if found := secret_among([value]):
                raise ValueError(f"env: {name}: {found} {_NO_SECRET}")
            if "\0" in value:
                raise ValueError(f"env: the value of {name} holds a NUL character")
        return self

    def warning(self) -> str | None:
        """Return the signal to send before the time limit: USR2 to built-in training, to a command what it takes."""
        if self.algorithm is not None:
            return "USR2"
        return None if self.on_warning in (None, "none") else self.on_warning

    def placeholders(self) -> set[str]:
        texts = [*(self.command or ()), *self.env.values()]
        return {name for text in texts for name in _PLACEHOLDER.findall(text)}


class Rule(Model):
    """A partial cell: it matches every cell that agrees with it. A list means any of its values."""

    model_config = ConfigDict(frozen=True, extra="allow")

    def matches(self, values: dict[str, Any]) -> bool:
        wanted = self.model_extra or {}
        return all(
            values.get(key) in each if isinstance(each, list) else values.get(key) == each
            for key, each in wanted.items()
        )


class Resources(Model):
    """What a cell asks for unless an axis says otherwise. Cores and memory are for each task."""

    cpus: int = Field(1, ge=1)
    gpus: int = Field(0, ge=0, description="GPUs of the whole cell")
    gpu_type: Name | None = None
    nodes: int = Field(1, ge=1)
    tasks: int | None = Field(None, ge=1, description="ranks; by default one, or with a parallelism one for each GPU")
    memory: MiB = 4096
    time: Seconds = 3600
    parallelism: Literal["none", "horovod", "native"] = Field(
        "none", description="how ranks average gradients: by Horovod, or by the framework's own means (native)"
    )


class Pin(Model):
    """A placement fixed by hand for one cluster."""

    partition: Name | None = None
    qos: Name | None = None


def _seeds(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise ValueError("a study needs at least one seed: give a number from 1 on, or a list of seeds")
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
    tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(_seeds, json_schema_input_type=int | list[int])
]


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
    def _axes(self) -> Study:
        for axis, values in self.axes.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", axis):
                raise ValueError(f"axes: {axis!r} is not a name: use letters, digits and _")
            if axis in ("seed", "seeds"):
                raise ValueError("axes: seeds are no axis: write `seeds:` at the top level")
            if not values:
                raise ValueError(f"axes.{axis}: has no values: give at least one")
            if len({repr(value) for value in values}) < len(values):
                raise ValueError(f"axes.{axis}: repeats a value")
            for value in values:
                self._check(f"axes.{axis}", value if isinstance(value, dict) else {axis: value})
        for number, extra in enumerate(self.include):
            self._check(f"include.{number}", extra)
        names = self.factors() | {"seed", "cell"}
        for rule in self.exclude:
            for key in rule.model_extra or {}:
                if key not in names:
                    raise ValueError(f"exclude: no axis {key!r}; {suggestion(key, names)}")
        if unknown := sorted(self.workload.placeholders() - names):
            raise ValueError(f"workload: no axis for {{{unknown[0]}}}; {suggestion(unknown[0], names)}")
        if self.workload.algorithm and (self.score or self.better):
            key = "score" if self.score else "better"
            raise ValueError(f"`{key}` is for commands: built-in training is compared by its return")
        if self.goal is None and self.workload.algorithm and self.stops_at_goal():
            raise ValueError("`stop_at_goal` needs a goal: say at the study's top level which return counts as solved")
        if self.better and not self.score:
            raise ValueError("`better` is of a `score`: name the reported value, such as `score: loss`")
        if self.workload.algorithm and "framework" not in names:
            raise ValueError(f"axes: `framework` is missing; {suggestion('framework', FRAMEWORKS)}")
        return self

    def stops_at_goal(self) -> bool:
        """Tell whether some cells end where they reach the goal."""
        points = [value for values in self.axes.values() for value in values if isinstance(value, dict)]
        asked = [self.workload.hyperparameters, *points, *self.include]
        return any(each.get("stop_at_goal") for each in asked) or any(self.axes.get("stop_at_goal", ()))

    def _check(self, where: str, values: dict[str, Scalar]) -> None:
        for key, value in values.items():
            if isinstance(value, str) and "\0" in value:
                raise ValueError(f"{where}.{key}: holds a NUL character")
            if self.workload.algorithm and key == "framework" and value not in FRAMEWORKS:
                raise ValueError(f"{where}: no framework {value!r}; {suggestion(str(value), FRAMEWORKS)}")
            modes = {mode for each in FRAMEWORKS.values() for mode in each}
            if self.workload.algorithm and key == "execution" and value not in modes:
                raise ValueError(f"{where}: no execution mode {value!r}; {suggestion(str(value), modes)}")
            if key in ("time", "memory"):
                (parse_time if key == "time" else parse_memory)(value)
            elif key in RESOURCES:
                try:
                    Resources.model_validate({key: value})
                except ValueError as error:
                    detail = error.errors()[0]["msg"] if hasattr(error, "errors") else str(error)
                    raise ValueError(f"{where}: {key}: {detail[:1].lower()}{detail[1:]}, got {value!r}") from None

    def factors(self) -> set[str]:
        """Return every key that the axes and the included cells set."""
        keys = set()
        for axis, values in self.axes.items():
            for value in values:
                keys |= set(value) if isinstance(value, dict) else {axis}
        return keys | {key for extra in self.include for key in extra}
