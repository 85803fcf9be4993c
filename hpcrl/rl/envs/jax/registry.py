"""The environments in JAX by the names of their originals; each file of this package that has WORLDS offers some."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import hpcrl.rl.envs.jax as package
from hpcrl.errors import UsageError, suggestion
from hpcrl.rl.envs.jax.world import World


def worlds() -> dict[str, World]:
    """Return every environment by its name."""
    found: dict[str, World] = {}
    for module in pkgutil.iter_modules(package.__path__):
        if module.name != "registry":
            found |= getattr(importlib.import_module(f"{package.__name__}.{module.name}"), "WORLDS", {})
    return found


def world_of(environment: Any) -> tuple[World, int]:
    """Return a Gymnasium environment in JAX, and its limit of steps.

    Raises:
        UsageError: there is none.
    """
    spec, known = environment.spec, worlds()
    name = spec.id if spec else type(environment).__name__
    if name not in known:
        raise UsageError(f"jax fused: there is no {name} in JAX; {suggestion(name, known)}")
    return known[name], int(spec.max_episode_steps or 2**30)
