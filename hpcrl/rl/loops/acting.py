"""Who acts: the framework, or NumPy on the learner's weights."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.rl.interfaces import Actor, Algorithm, Arrays, Learner


class FrameworkActor:
    """The learner itself: what a comparison of frameworks measures."""

    def __init__(self, learner: Learner) -> None:
        self.act, self.sample = learner.act, learner.sample

    def refresh(self) -> None:
        """Do nothing: the learner acts on its current weights."""


class NumpyActor:
    """The specification on a copy of the weights that the algorithm acts with: no framework call per step."""

    def __init__(self, learner: Learner, algorithm: Algorithm) -> None:
        page: Any = importlib.import_module(f"hpcrl.rl.specification.{algorithm.name}")
        self._page, self._settings, self._group = page, algorithm.settings, algorithm.acts_with
        self._learner = learner
        self.refresh()

    def act(self, observations: NDArray[np.float32]) -> NDArray[np.int64]:
        actions: NDArray[np.int64] = self._page.greedy(observations, self._settings, self._weights)
        return actions

    def sample(self, observations: NDArray[np.float32], noise: NDArray[np.float32]) -> Arrays:
        sampled: Arrays = self._page.sample(observations, noise, self._settings, self._weights)
        return sampled

    def refresh(self) -> None:
        """Copy the learner's weights."""
        self._weights = self._learner.weights(self._group)


def make_actor(learner: Learner, algorithm: Algorithm) -> Actor:
    """Return the actor that the settings ask for."""
    return NumpyActor(learner, algorithm) if algorithm.settings.acting == "numpy" else FrameworkActor(learner)
