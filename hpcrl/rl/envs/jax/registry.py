"""The environments in JAX by the names of their originals; each file of this package that has WORLDS offers some."""

from __future__ import annotations

import importlib
import pkgutil

import hpcrl.rl.envs.jax as package
from hpcrl.rl.envs.jax.world import World


def worlds() -> dict[str, World]:
    """Return every environment by its name."""
    found: dict[str, World] = {}
    for module in pkgutil.iter_modules(package.__path__):
        if module.name != "registry":
            found |= getattr(importlib.import_module(f"{package.__name__}.{module.name}"), "WORLDS", {})
    return found
