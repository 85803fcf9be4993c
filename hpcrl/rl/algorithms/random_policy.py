"""The random policy as data: it has no weights and no gradient steps."""

from __future__ import annotations

from hpcrl.catalogue.algorithms.random_policy import Settings
from hpcrl.rl.interfaces import Algorithm, Space


def algorithm(space: Space, settings: Settings) -> Algorithm:
    """Return the random policy on this space."""
    return Algorithm(
        name="random_policy", space=space, settings=settings, groups={}, targets={}, steps=(), acts_with=""
    )
