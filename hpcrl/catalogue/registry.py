"""Find the entries of the catalogue by their files, in a directory or inside the worker's zip."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import hpcrl.catalogue.algorithms
import hpcrl.catalogue.frameworks
import hpcrl.catalogue.schedulers


def _no_episode_fault(settings: Any, limit: int) -> None:
    return None


@dataclass(frozen=True)
class Algorithm:
    """An algorithm of built-in training.

    `fused`: it has a loop that is compiled with the environment. `actions` (``discrete``, ``continuous``) and `observations` (``vector``,
    ``image``) say which environments it can learn. `bounded`: it needs actions with bounds, and gets an environment whose actions go
    from -1 to 1. `settings` is the dataclass of its hyperparameters. `fault(settings, ranks)` returns the setting with which that many ranks
    cannot train, and why, or None. `note(settings, least, most)` says what its user should know where discounted returns are
    between `least` and `most`, or returns None. With `learns` false it only takes steps. `episode_fault(settings, limit)` returns the
    setting that does not suit episodes of at most `limit` steps, and why, or None.
    """

    name: str
    title: str
    family: str
    frameworks: tuple[str, ...]
    actions: tuple[str, ...]
    observations: tuple[str, ...]
    fused: bool
    bounded: bool
    settings: type[Any]
    fault: Callable[[Any, int], tuple[str, str] | None]
    note: Callable[[Any, float, float], str | None]
    learns: bool = True
    episode_fault: Callable[[Any, int], tuple[str, str] | None] = _no_episode_fault


@dataclass(frozen=True)
class Framework:
    """A framework.

    `modes` are its execution modes, the default first; those in `one_process` train in a single process only.
    `parallelism` lists the ways in which several ranks can train one agent, without ``none``. `devices` are those that it computes
    on, `observations` those that its networks here can have: without ``image`` it has no convolutions. `stepping` lists the ways in which its environment can step several training environments,
    `environments` those that it has as compiled programs, for `fused`, and JAX for `stepping: compiled` of every framework. `software` names the software environment
    of the ways of stepping that need another one than the framework's own, which has its name. `threads` are the variables that tell it a number of threads, `variables(cpus, given)` the other ones to set before
    its import. `private_directories` are variables that name a directory: each process gets a new one. With `has_profiler` cells can run
    under its own profiler. `out_of_memory` are the messages of its allocators, in lower case. The kinds of
    parallelism in `needs_mpi` work over MPI only.
    """

    name: str
    title: str
    modes: tuple[str, ...]
    one_process: tuple[str, ...]
    parallelism: tuple[str, ...]
    packages: tuple[str, ...]
    devices: tuple[str, ...]
    observations: tuple[str, ...]
    stepping: tuple[str, ...]
    environments: tuple[str, ...]
    software: Mapping[str, str]
    threads: tuple[str, ...]
    out_of_memory: tuple[str, ...]
    private_directories: tuple[str, ...]
    has_profiler: bool
    needs_mpi: tuple[str, ...]
    variables: Callable[[int, Mapping[str, str]], dict[str, str]]

    @property
    def default_mode(self) -> str:
        return self.modes[0]

    def software_of(self, stepping: object) -> str:
        """Return the name of the software environment of a cell that steps its environments in this way, or in none."""
        return self.software.get(str(stepping), self.name)


@dataclass(frozen=True)
class Scheduler:
    """What runs the jobs of a plan.

    `here`: they run on the machine that submits them, and need no queue of a site. `command` is what that machine must have.
    `attempt(token, job_id, index)` names an attempt in records and logs, without its restarts: of the submission `token`, the
    place `index` in its array (None: it is no array).
    """

    name: str
    title: str
    here: bool
    command: str | None
    attempt: Callable[[str, str, int | None], str]


def _no_note(settings: Any, least: float, most: float) -> None:
    return None


@cache
def algorithms() -> dict[str, Algorithm]:
    """Return every algorithm by its name."""
    return {
        name: Algorithm(
            name, entry.TITLE, entry.FAMILY, entry.FRAMEWORKS, entry.ACTIONS, entry.OBSERVATIONS, entry.FUSED,
            getattr(entry, "BOUNDED", False), entry.Settings, entry.fault, getattr(entry, "note", _no_note),
            getattr(entry, "LEARNS", True), getattr(entry, "episode_fault", _no_episode_fault),
        )
        for name, entry in _entries(hpcrl.catalogue.algorithms)
    }  # fmt: skip


@cache
def frameworks() -> dict[str, Framework]:
    """Return every framework by its name."""
    return {
        name: Framework(
            name, entry.TITLE, entry.MODES, entry.ONE_PROCESS, entry.PARALLELISM, entry.PACKAGES, entry.DEVICES,
            entry.OBSERVATIONS, entry.STEPPING, getattr(entry, "ENVIRONMENTS", ()),
            getattr(entry, "SOFTWARE", {}), entry.THREADS, entry.OUT_OF_MEMORY, entry.PRIVATE_DIRECTORIES,
            getattr(entry, "HAS_PROFILER", False), getattr(entry, "NEEDS_MPI", ()), entry.variables,
        )
        for name, entry in _entries(hpcrl.catalogue.frameworks)
    }  # fmt: skip


@cache
def schedulers() -> dict[str, Scheduler]:
    """Return every scheduler by its name."""
    return {
        name: Scheduler(name, entry.TITLE, entry.HERE, entry.COMMAND, entry.attempt)
        for name, entry in _entries(hpcrl.catalogue.schedulers)
    }


def modes() -> list[str]:
    """Return the execution modes of all frameworks."""
    return sorted({mode for framework in frameworks().values() for mode in framework.modes})


def is_out_of_memory(text: str) -> bool:
    """Tell whether an error's text is a framework's message for a failed allocation."""
    return any(words in text.lower() for framework in frameworks().values() for words in framework.out_of_memory)


def _entries(package: ModuleType) -> list[tuple[str, Any]]:
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    return [(name, importlib.import_module(f"{package.__name__}.{name}")) for name in names]
