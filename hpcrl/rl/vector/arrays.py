"""Environments that are NumPy arrays: one step of all of them is a few operations on arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcrl.errors import UsageError
from hpcrl.rl.envs.doors_arrays import of_environment
from hpcrl.rl.interfaces import VectorEnvironment

# By the environment of which they are many. The catalogue says so, too.
_ARRAYS: dict[str, Callable[[Any, int], VectorEnvironment]] = {"Doors-v0": of_environment}


def make(make_environment: Callable[[], Any], count: int) -> VectorEnvironment:
    """Return `count` environments.

    Raises:
        UsageError: there is no such environment as arrays.
    """
    environment = make_environment()
    spec = getattr(environment, "spec", None)
    name = spec.id if spec else type(environment).__name__
    if name not in _ARRAYS:
        raise UsageError(f"stepping arrays: there is no {name} as NumPy arrays, only {', '.join(_ARRAYS)}")
    return _ARRAYS[name](environment, count)
