"""Check an environment with Gymnasium, if it is installed on the planning side."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from hpcrl.catalogue.actions import FAULT, SPACES, bounds_fault, kind_of_actions
from hpcrl.catalogue.environments import OWN_ENVIRONMENTS
from hpcrl.catalogue.images import kind_of, observation_fault
from hpcrl.errors import UsageError, suggestion
from hpcrl.spec.quiet import without_warnings

_Spaces = tuple[
    str, Any, str | None
]  # kind of actions, space of observations, whether continuous actions have no bounds
_SECONDS = 60  # for the check of an environment of another package
# The least and the largest reward of a step, where that is known.
_REWARDS = {"CartPole": (1.0, 1.0), "MountainCar": (-1.0, -1.0), "Acrobot": (-1.0, 0.0)}


def reward_range(name: str) -> tuple[float, float] | None:
    """Return the least and the largest reward of a step of an environment; None if that is not known."""
    return _REWARDS.get(name.rpartition("-v")[0])


def episode_limit(name: str, options: Mapping[str, Any], given: int | None) -> int | None:
    """Return the maximum steps of an episode, where a study gives the limit `given`, or none.

    None if there is no maximum, or if it is not known here.
    """
    if not (own := OWN_ENVIRONMENTS.get(name)):
        return given or _registered_limit(name)
    try:
        own = own.with_options(name, options)
    except UsageError:  # a fault of its own
        return None
    return (given or own.limit) + own.more_steps


@cache
def _registered_limit(name: str) -> int | None:
    if not is_known_here(name):
        return None
    from gymnasium.envs.registration import registry

    versions = [spec for spec in registry.values() if name in (spec.id, spec.id.rpartition("-v")[0])]
    newest = max(versions, key=lambda spec: spec.version or 0, default=None)
    return newest.max_episode_steps if newest else None


@cache
def environment_fault(
    name: str,
    options: tuple[tuple[str, Any], ...],
    algorithm: str,
    actions: tuple[str, ...],
    observations: tuple[str, ...],
    bounded: bool = False,
) -> str | None:
    """Say why an algorithm cannot learn an environment with these options; None if it can, or if that is not known here.

    `bounded`: it needs actions with bounds.

    An id such as ``module:Name-v0`` is given to Gymnasium's check_env, in a process of its own, if the module is there.
    """
    wrong, spaces = (_unknown(name), _spaces(name, options)) if is_known_here(name) else _checked(name, options)
    if wrong or spaces is None:
        return wrong
    kind, observed, unbounded = spaces
    if kind not in actions:
        return f"{algorithm}: expected {' or '.join(actions)} actions, got {kind} ones of {name}"
    if wrong := observation_fault(observed, observations):
        return f"{algorithm}: {wrong} of {name}"
    return f"{algorithm}: {unbounded} in {name}" if bounded and unbounded else None


def _unknown(name: str) -> str | None:
    """Say that Gymnasium and hpcrl have no environment of this name; None if they have."""
    from gymnasium.envs.registration import registry

    known = {*registry, *OWN_ENVIRONMENTS}
    if name not in known:
        unversioned = {candidate.rpartition("-v")[0] for candidate in known if "-v" in candidate}
        if name not in unversioned:
            return (
                f"there is no environment {name!r}; {suggestion(name, known)} Write an environment of another package as "
                "module:Name-v0"
            )
    if _is_gone(name):
        base = name.rpartition("-v")[0]
        there = [spec for spec in registry.values() if spec.id.rpartition("-v")[0] == base and not _is_gone(spec.id)]
        newest = max(there, key=lambda spec: spec.version or 0, default=None)
        return f"Gymnasium knows {name}, but no longer has it" + (f": use {newest.id}" if newest else "")
    return None


def _is_gone(name: str) -> bool:
    """Tell whether Gymnasium has put a function that only raises an error in the place of an environment that moved to another package."""
    from gymnasium.envs.registration import registry

    maker = registry[name].entry_point if name in registry else None
    return getattr(maker, "__name__", "").startswith("_raise_")


def _checked(name: str, options: tuple[tuple[str, Any], ...]) -> tuple[str | None, _Spaces | None]:
    """Say what Gymnasium's check_env finds wrong with an environment of another package, else return its spaces.

    Both are None if that is not known here.
    """
    wrong, told = asked(name, options)
    if told is None:
        return wrong, None
    kind, shape, dtype, words, unbounded, _ = told
    return None, (kind, SimpleNamespace(shape=tuple(shape), dtype=dtype, described=words), unbounded)


def lacks_jax(name: str, options: tuple[tuple[str, Any], ...]) -> bool:
    """Tell whether an environment of another package is here, and its module has no `jax_world`."""
    _, told = asked(name, options)
    return told is not None and not told[-1]


@cache
def asked(name: str, options: tuple[tuple[str, Any], ...]) -> tuple[str | None, list[Any] | None]:
    """Ask a process of its own what is wrong with an environment of another package, and for its spaces."""
    module = name.partition(":")[0].partition(".")[0]
    if ":" not in name or not module.isidentifier() or not (find_spec(module) and find_spec("gymnasium")):
        return None, None
    command = [sys.executable, "-P", "-m", "hpcrl.rl.envs.checking", name, json.dumps(dict(options))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None, None
    for line in done.stdout.splitlines():  # the environment's own code may print, too
        if line.startswith(FAULT):
            return line.removeprefix(FAULT), None
        if line.startswith(SPACES):
            return None, json.loads(line.removeprefix(SPACES))
    return None, None


def image_side(name: str) -> int | None:
    """Return the side of the square images that an environment shows; None if it shows none, or if that is not known here."""
    spaces = _spaces(name) if is_known_here(name) else None
    return spaces[1].shape[0] if spaces and kind_of(spaces[1]) == "image" else None


def is_known_here(name: str) -> bool:
    """Tell whether Gymnasium can be asked for an environment here."""
    return ":" not in name and find_spec("gymnasium") is not None


@cache
def _spaces(name: str, options: tuple[tuple[str, Any], ...] = ()) -> _Spaces | None:
    """Return the kind of actions, the space of observations, and whether continuous actions have no bounds, as a sentence.

    None if the environment cannot be created here.
    """
    if own := OWN_ENVIRONMENTS.get(name):
        return "discrete", own, None
    import gymnasium

    with without_warnings():
        try:
            environment = gymnasium.make(name, **dict(options))
        except Exception:  # a package is missing here, or it fails for another reason: the cell will report it
            return None
        space, observed = environment.action_space, environment.observation_space
        environment.close()
    kind = kind_of_actions(space)
    return kind, observed, bounds_fault(space) if kind == "continuous" else None
