"""Check an environment with Gymnasium, if it is installed on the planning side."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

from hpcrl.catalogue.actions import kind_of_actions
from hpcrl.catalogue.environments import OWN_ENVIRONMENTS
from hpcrl.catalogue.images import kind_of, observation_fault
from hpcrl.errors import suggestion
from hpcrl.spec.quiet import without_warnings

# The least and the largest reward of a step, where that is known.
_REWARDS = {"CartPole": (1.0, 1.0), "MountainCar": (-1.0, -1.0), "Acrobot": (-1.0, 0.0)}


def reward_range(name: str) -> tuple[float, float] | None:
    """Return the least and the largest reward of a step of an environment; None if that is not known."""
    return _REWARDS.get(name.rpartition("-v")[0])


@cache
def environment_fault(
    name: str,
    options: tuple[tuple[str, Any], ...],
    algorithm: str,
    actions: tuple[str, ...],
    observations: tuple[str, ...],
) -> str | None:
    """Say why an algorithm cannot learn an environment with these options; None if it can, or if that is not known here.

    An id such as ``module:Name-v0`` is checked in the cell only, because a look-up would import the module.
    """
    if not is_known_here(name):
        return None
    from gymnasium.envs.registration import registry

    known = {*registry, *OWN_ENVIRONMENTS}
    if name not in known:
        unversioned = {each.rpartition("-v")[0] for each in known if "-v" in each}
        if name not in unversioned:
            return (
                f"there is no environment {name!r}; {suggestion(name, known)} Write an environment of another package as "
                "module:Name-v0"
            )
    spaces = _spaces(name, options)
    if spaces is None:
        return None
    kind, observed = spaces
    if kind not in actions:
        return f"{algorithm}: expected {' or '.join(actions)} actions, got {kind} ones of {name}"
    if wrong := observation_fault(observed, observations):
        return f"{algorithm}: {wrong} of {name}"
    return None


def image_side(name: str) -> int | None:
    """Return the side of the square images that an environment shows; None if it shows none, or if that is not known here."""
    spaces = _spaces(name) if is_known_here(name) else None
    return spaces[1].shape[0] if spaces and kind_of(spaces[1]) == "image" else None


def is_known_here(name: str) -> bool:
    """Tell whether Gymnasium can be asked for an environment here."""
    return ":" not in name and find_spec("gymnasium") is not None


@cache
def _spaces(name: str, options: tuple[tuple[str, Any], ...] = ()) -> tuple[str, Any] | None:
    """Return the kind of actions and the space of observations; None if the environment cannot be created here."""
    if own := OWN_ENVIRONMENTS.get(name):
        return "discrete", own
    import gymnasium

    with without_warnings():
        try:
            environment = gymnasium.make(name, **dict(options))
        except Exception:  # a package is missing here, or it fails for another reason: the cell will report it
            return None
        space, observed = environment.action_space, environment.observation_space
        environment.close()
    return kind_of_actions(space), observed
