"""The profilers that a study or `hpcrl run --profile` can name, and which workloads each can look at."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrl.errors import written

KEY = "profile"  # of a study, of an axis, and of a cell's configuration
NONE = "none"
# The environment steps of a training at which a profiler begins, and for how many it looks; 0: to the end.
FROM, STEPS = "profile_from", "profile_steps"
WINDOW = (FROM, STEPS)
FRAMEWORK = "framework"  # its own profiler
MOST_OWN = 30  # functions with the largest own values that a profile keeps
LIMIT = 64  # MiB of the file of one profile, unless a study says `profile_limit`
_WITH_VALUE = re.compile(r"-[^-cmWX]*[WX]|--check-hash-based-pycs")  # the next word is the option's value
_PYTHON = re.compile(r"(?:.*/)?(?:python|pypy)(?:\d(?:\.\d+)?t?)?")


def is_extra(profiler: Any, config: str) -> bool:
    """Tell whether an attempt ran by hand under a profiler that is not its cell's own: it is no result of the cell.

    Args:
        profiler: its name; empty, None or NaN for none.
        config: the cell's configuration as JSON.
    """
    return isinstance(profiler, str) and profiler != "" and json.loads(config).get(KEY) != profiler


@dataclass(frozen=True)
class Profiler:
    """A profiler.

    Args:
        unit: of what it counts: seconds, samples or bytes.
        viewer: what shows a profile, with the places {file}, {plan} and {cell}.
        package: what the cell's environment must have; empty: only the standard library, or the framework itself.
        commands: whether it can look at a command; `python_only`: of Python, in its command line.
        whole: whether it looks at the whole training; otherwise at the first second.
    """

    name: str
    title: str
    unit: str
    viewer: str
    package: str = ""
    commands: bool = True
    python_only: bool = True
    whole: bool = True

    def opened_with(self, file: Path, plan: Path, cell: str) -> str:
        """Return the command, for a shell, or the address that shows a profile's file."""
        return self.viewer.format(file=shlex.quote(str(file)), plan=shlex.quote(str(plan)), cell=cell)


PROFILERS = {
    profiler.name: profiler
    for profiler in (
        Profiler("cprofile", "cProfile", "s", "snakeviz {file}"),
        Profiler(
            "py-spy",
            "py-spy",
            "samples",
            "https://www.speedscope.app (choose {file} there)",
            "py-spy",
            python_only=False,
        ),
        Profiler("memray", "memray", "B", "memray flamegraph {file}", "memray"),
        Profiler(
            FRAMEWORK,
            "the framework's profiler",
            "s",
            "hpcrl profile {plan} --cell {cell} --export trace, and https://ui.perfetto.dev",
            commands=False,
            whole=False,
        ),
    )
}
NAMES = (NONE, *PROFILERS)


@dataclass(frozen=True)
class PythonCommand:
    """A command line of Python, cut into the interpreter with its options, and what it runs: ``-c``, ``-m`` or a script."""

    interpreter: tuple[str, ...]
    program: tuple[str, ...]


def python_command(words: Sequence[str]) -> PythonCommand | None:
    """Cut a command line of Python; None if it is another program, or if Python would run nothing or its standard input."""
    if not words or not _PYTHON.fullmatch(words[0]):
        return None
    place = 1
    while place < len(words):
        word = words[place]
        if word == "-" or not word:
            return None
        if not word.startswith("-"):
            return PythonCommand(tuple(words[:place]), tuple(words[place:]))
        if _WITH_VALUE.fullmatch(word):
            place += 2
            continue
        if not word.startswith("--") and (match := re.fullmatch(r"-([^cmWX]*)([cm])(.*)", word, re.DOTALL)):
            before, kind, value = match.groups()
            rest = ([value] if value else []) + list(words[place + 1 :])
            if not rest:
                return None
            options = (*words[:place], *([f"-{before}"] if before else []))
            return PythonCommand(options, (f"-{kind}", *rest))
        place += 1
    return None


def command_fault(profiler: Profiler, words: Sequence[str]) -> str | None:
    """Say why a profiler cannot look at a command line; None if it can, or if a placeholder is the program."""
    if not profiler.commands:
        others = " or ".join(other.name for other in PROFILERS.values() if other.commands)
        return f"{profiler.name} is for built-in training: use {others} for a command"
    if profiler.python_only and "{" not in words[0] and python_command(words) is None:
        return (
            f"{profiler.name} runs Python programs, but the command is {written(' '.join(words[:2]))}: begin it with python, as in "
            "[python, train.py]"
        )
    return None


def without_idle_window(config: dict[str, Any]) -> dict[str, Any]:
    """Leave out of a cell's configuration the steps of a profiler that it has not, and those that say nothing."""
    profiled = config.get(KEY, NONE) != NONE
    return {name: value for name, value in config.items() if name not in WINDOW or (profiled and value)}


def window_of(config: Mapping[str, Any]) -> tuple[int, int | None]:
    """Return the environment steps of a training at which the profiler of a cell begins and ends (None: with the training)."""
    begin, steps = config.get(FROM, 0), config.get(STEPS, 0)
    return begin, begin + steps if steps else None


def how_to_add(package: str) -> str:
    """Say how a study gets an environment with a package that hpcrl's own environments do not have."""
    return (
        f"name an environment of your own in the study, such as a file envs/mine.yaml with `extends: numpy`, `name: mine` and `+packages: [...]` with "
        f"the pins of {package} and of what it needs, or an existing one with `path`"
    )
