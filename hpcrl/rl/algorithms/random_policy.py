"""The random policy as data: it has no weights and no gradient steps. And its actions, and the starts of its environments."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.catalogue.algorithms.random_policy import Settings
from hpcrl.rl.interfaces import Algorithm, Space
from hpcrl.rl.runs import Run


def algorithm(space: Space, settings: Settings) -> Algorithm:
    """Return the random policy on this space."""
    return Algorithm(
        name="random_policy", space=space, settings=settings, groups={}, targets={}, steps=(), acts_with=""
    )


class Drawn:
    """The actions of a run: those of a rollout are drawn together, and are the same in all ways of stepping."""

    def __init__(self, algorithm: Algorithm, run: Run) -> None:
        settings = algorithm.settings
        self._generator = np.random.default_rng([run.seed, 1])
        self._actions, self._shape = algorithm.space.actions, (settings.rollout_steps, settings.environments)

    def rollout(self) -> NDArray[np.int64]:
        """Return the actions (steps, environments) of a rollout."""
        return self._generator.integers(self._actions, size=self._shape)

    def state(self) -> dict[str, Any]:
        """Return the state of the random stream."""
        return dict(self._generator.bit_generator.state)

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self._generator.bit_generator.state = state


def start_seeds(run: Run, step: int, count: int) -> list[int]:
    """Return new seeds of `count` environments, other ones at each step."""
    return [int(seed) for seed in np.random.SeedSequence([run.seed, 5, step]).generate_state(count)]
