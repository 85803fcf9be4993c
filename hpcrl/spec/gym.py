"""What Gymnasium knows of an environment, where it is installed on the planning side."""

from __future__ import annotations

import warnings
from functools import cache
from importlib.util import find_spec
from typing import Any

from hpcrl.errors import suggestion


@cache
def environment_fault(name: str, algorithm: str, actions: str, observations: str) -> str | None:
    """Say why an algorithm cannot learn an environment, None where it can or where that cannot be known here.

    An id such as ``module:Name-v0`` is left to the cell: to look it up would import the module.
    """
    if ":" in name or find_spec("gymnasium") is None:
        return None
    from gymnasium.envs.registration import registry

    if name not in registry:
        unversioned = {each.rpartition("-v")[0] for each in registry if "-v" in each}
        if name not in unversioned:
            return (
                f"Gymnasium has no environment {name!r}; {suggestion(name, registry)} Write one of another package as "
                "module:Name-v0"
            )
    spaces = _spaces(name)
    if spaces is None:
        return None
    kind, shape = spaces
    if actions == "discrete" and kind != "discrete":
        return f"{algorithm} needs discrete actions, and {name} has {kind} ones"
    if observations == "vector" and (shape is None or len(shape) != 1):
        return f"{algorithm} needs a vector of observations, and those of {name} have shape {shape}"
    return None


def _spaces(name: str) -> tuple[str, Any] | None:
    """Return the kind of actions and the shape of observations; None where the environment cannot be made here."""
    import gymnasium

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            environment = gymnasium.make(name)
        except Exception:  # what it needs is not installed here, or it fails in its own way: the cell will say so
            return None
        space, shape = environment.action_space, environment.observation_space.shape
        environment.close()
    if isinstance(space, gymnasium.spaces.Discrete):
        return "discrete", shape
    return "continuous" if isinstance(space, gymnasium.spaces.Box) else "other", shape
