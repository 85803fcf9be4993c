"""Environments by their names."""

from __future__ import annotations

from typing import Any

from hpcrl.catalogue.environments import OWN_ENVIRONMENTS
from hpcrl.errors import UsageError


def gymnasium_environment(name: str, max_episode_steps: int | None) -> Any:
    """Make a Gymnasium environment, or one of hpcrl's own; None keeps the environment's own limit of steps.

    Raises:
        UsageError: there is none of this name, or it cannot be made here.
    """
    import gymnasium

    for own, described in OWN_ENVIRONMENTS.items():
        if own not in gymnasium.registry:
            gymnasium.register(own, described.entry, kwargs=described.options, max_episode_steps=described.limit)
    try:
        return gymnasium.make(name, max_episode_steps=max_episode_steps)
    except gymnasium.error.Error as error:
        raise UsageError(f"environment {name}: {' '.join(str(error).split())}") from None
