"""Make the vector environment that a study asks for; each way is a file of this package."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from hpcrl.catalogue.training import IN_PROCESSES, WORKERS
from hpcrl.rl.interfaces import VectorEnvironment


def make_vector(
    stepping: str, make_environment: Callable[[], Any], count: int, workers: str = WORKERS[0]
) -> VectorEnvironment:
    """Return `count` environments that are stepped in the way `stepping`, which is the name of a file of this package.

    Args:
        workers: how many processes there are, if it is a way with processes: one of the catalogue's WORKERS.
    """
    make = importlib.import_module(f"hpcrl.rl.vector.{stepping}").make
    more = (workers,) if stepping in IN_PROCESSES else ()
    environments: VectorEnvironment = make(make_environment, count, *more)
    return environments
