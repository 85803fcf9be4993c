"""The workload of a study: built-in training or a command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field, model_validator

from hpcrl.catalogue.registry import algorithms
from hpcrl.errors import suggestion
from hpcrl.placeholders import placeholders
from hpcrl.secrets import looks_secret, secret_among
from hpcrl.spec.explain import Faults, Key
from hpcrl.spec.patterns import pattern_faults
from hpcrl.spec.quantities import Name
from hpcrl.spec.resources import Model

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
NO_SECRET = (
    "looks like a secret: remove it from the study, export it in your shell and let the program read the variable"
)


class Workload(Model):
    """Built-in training (`algorithm` and `environment`, here or as axes) or any `command`."""

    algorithm: Name | None = Field(None, description="an algorithm of `hpcrl algorithm list`; or make it an axis")
    environment: str | None = Field(None, description="a Gymnasium environment id; or make it an axis")
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
        trained = self.algorithm is not None or self.environment is not None
        if trained if self.command is not None else not self.model_fields_set:
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

    @property
    def trained_with(self) -> dict[str, Any] | None:
        """The hyperparameters of built-in training; None: this is a command."""
        return self.hyperparameters if self.trains else None

    def _faults(self) -> Iterator[tuple[Key, str]]:
        for step, words in self.steps().items():
            if secret := secret_among(words):
                yield (step,), f"{secret} {NO_SECRET}"
        if self.trains:
            if self.algorithm is not None and self.algorithm not in algorithms():
                yield ("algorithm",), f"no algorithm {self.algorithm!r}; {suggestion(self.algorithm, algorithms())}"
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
            if secret := secret_among([value]):
                yield ("env", name), f"{secret} {NO_SECRET}"
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
