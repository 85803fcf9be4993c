"""The learner of a policy that learns nothing: it acts at random."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcrl.rl.interfaces import Actions, Algorithm, Arrays, Observations, Weights

_ACTING = 6  # random stream of a seed, in addition to those of loops and evaluations


class IdleLearner:
    """It has no weights, and its updates change nothing. Its actions are uniformly random."""

    burst = None

    def __init__(self, algorithm: Algorithm, execution: str, seed: int) -> None:
        self._actions, self._settings, self._execution = algorithm.space.actions, algorithm.settings, execution
        self._draw = np.random.default_rng([seed, _ACTING])

    def act(self, observations: Observations) -> Actions:
        return self._draw.integers(self._actions, size=len(observations))

    def sample(self, observations: Observations, noise: Any) -> Arrays:
        return (self.act(observations),)

    def transfer(self, batch: Arrays) -> Arrays:
        return batch

    def update(self, step: str, batch: Any, learning_rate: float) -> Arrays:
        return ()

    def read(self, aux: Any) -> Arrays:
        return tuple(np.asarray(array) for array in aux)

    def sync(self, target: str, share: float = 1.0) -> None:
        """Do nothing: there are no target copies."""

    def synchronize(self) -> None:
        """Do nothing: no work is waiting."""

    def compiled(self) -> str:
        settings = self._settings
        if self._execution == "fused":
            return f"jax.jit: {settings.rollout_steps} steps of all environments in one scan"
        if settings.stepping == "compiled":
            return "jax.jit: one step of all environments"
        return "nothing: the environments are not compiled"

    def peak_memory(self) -> int | None:
        return None

    def weights(self, name: str) -> Weights:
        return {}

    def state(self) -> Weights:
        return {}

    def load_state(self, state: Weights) -> None:
        """Do nothing: there is no state."""
