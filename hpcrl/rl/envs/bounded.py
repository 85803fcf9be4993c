"""An environment whose actions go from -1 to 1, as algorithms for bounded actions have them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.catalogue.actions import bounds_fault, kind_of_actions


def stretched(low: NDArray[np.float32], high: NDArray[np.float32]) -> Callable[[Any], Any]:
    """Return the function that makes actions from `low` to `high` (actions,) of actions (..., actions) from -1 to 1."""
    middle, half = (low + high) / 2, (high - low) / 2
    # Rounding can lead beyond a bound.
    return lambda action: np.minimum(np.maximum(middle + half * action, low), high)


class Bounded:
    """Takes -1 for the lowest and 1 for the highest value of each number of `environment`'s actions, from `low` to `high`."""

    def __init__(self, environment: Any) -> None:
        self._environment, space = environment, environment.action_space
        self.observation_space = environment.observation_space
        self.spec = getattr(environment, "spec", None)
        low, high = (np.asarray(values, np.float32) for values in (space.low, space.high))
        self.low, self.high, self._stretched = low, high, stretched(low, high)
        ones = np.ones(low.shape, np.float32)
        self.action_space = SimpleNamespace(shape=low.shape, dtype=space.dtype, low=-ones, high=ones)

    def reset(self, seed: int | None = None) -> Any:
        return self._environment.reset(seed=seed)

    def step(self, action: NDArray[np.float32]) -> Any:
        return self._environment.step(self._stretched(action))

    def close(self) -> None:
        self._environment.close()


def bounded_environment(make_environment: Callable[[], Any]) -> Any:
    """Make an environment whose actions, if they are real numbers with bounds, go from -1 to 1."""
    environment = make_environment()
    space = environment.action_space
    if kind_of_actions(space) != "continuous" or bounds_fault(space):
        return environment
    return environment if all(abs(value) == 1 for value in (*space.low, *space.high)) else Bounded(environment)
