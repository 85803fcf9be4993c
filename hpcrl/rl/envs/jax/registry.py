"""The environments in JAX by the names of their originals; each file of this package that has WORLDS offers some."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import hpcrl.rl.envs.jax as package
from hpcrl.errors import UsageError, suggestion
from hpcrl.rl.envs.jax.world import World


def worlds() -> dict[str, World | Callable[..., World]]:
    """Return every environment by its name. One that has options is a function of them."""
    by_name: dict[str, World | Callable[..., World]] = {}
    for module in pkgutil.iter_modules(package.__path__):
        if module.name != "registry":
            by_name |= getattr(importlib.import_module(f"{package.__name__}.{module.name}"), "WORLDS", {})
    return by_name


def _own_world(spec: Any) -> Callable[..., World] | None:
    entry = getattr(spec, "entry_point", None)
    if not isinstance(entry, str):
        return None
    world: Callable[..., World] | None = getattr(importlib.import_module(entry.partition(":")[0]), "jax_world", None)
    return world


def world_of(environment: Any) -> tuple[World, int]:
    """Return a Gymnasium environment in JAX, with its options, and its limit of steps.

    An environment of another package has a function `jax_world` of its options in the module of its class.

    Raises:
        UsageError: there is none, or not with these options.
    """
    spec, known = environment.spec, worlds()
    name = spec.id if spec else type(environment).__name__
    if name not in known and (own := _own_world(spec)):
        known[name] = own
    if name not in known:
        raise UsageError(f"jax: there is no {name} in JAX; {suggestion(name, known)}")
    world, limit, options = known[name], int(spec.max_episode_steps or 2**30), getattr(spec, "kwargs", {})
    if isinstance(world, World):
        if options:
            raise UsageError(f"jax: {name} in JAX has no options, got {', '.join(options)}")
        return world, limit
    return world(**options), limit
