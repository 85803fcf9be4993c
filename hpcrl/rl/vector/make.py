"""Make the vector environment that a study asks for; each way is a file of this package."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from hpcrl.rl.interfaces import VectorEnvironment


def make_vector(stepping: str, make_environment: Callable[[], Any], count: int) -> VectorEnvironment:
    """Return `count` environments that are stepped in the way `stepping`, which is the name of a file of this package."""
    environments: VectorEnvironment = importlib.import_module(f"hpcrl.rl.vector.{stepping}").make(
        make_environment, count
    )
    return environments
