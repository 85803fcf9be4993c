"""Who acts: the framework, or NumPy on the learner's weights."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.rl import checkpoint
from hpcrl.rl.interfaces import Actions, Actor, Algorithm, Arrays, Learner, Observations, Weights


class FrameworkActor:
    """The learner itself: what a comparison of frameworks measures."""

    def __init__(self, learner: Learner, algorithm: Algorithm) -> None:
        self.act, self.sample = learner.act, learner.sample
        self._learner, self._group = learner, algorithm.acts_with

    def refresh(self) -> None:
        """Do nothing: the learner acts on its current weights."""

    def load(self, weights: Weights) -> None:
        """Act with these weights."""
        self._learner.load_state(self._learner.state() | checkpoint.nested(self._group, weights))


class NumpyActor:
    """The specification on a copy of the weights that the algorithm acts with: no framework call per step.

    The weights are the learner's, or without one those that it is given.
    """

    def __init__(self, algorithm: Algorithm, learner: Learner | None = None) -> None:
        page: Any = importlib.import_module(f"hpcrl.rl.specification.{algorithm.name}")
        self._page, self._settings, self._group = page, algorithm.settings, algorithm.acts_with
        self._learner, self._samples_with = learner, algorithm.samples_with
        self._others: list[Weights] = []
        self.refresh()

    def act(self, observations: Observations) -> Actions:
        actions: Actions = self._page.greedy(observations, self._settings, self._weights)
        return actions

    def sample(self, observations: Observations, noise: NDArray[np.float32]) -> Arrays:
        sampled: Arrays = self._page.sample(observations, noise, self._settings, self._weights, *self._others)
        return sampled

    def refresh(self) -> None:
        """Copy the learner's weights, if there is a learner."""
        if self._learner is not None:
            self._weights = self._learner.weights(self._group)
            self._others = [self._learner.weights(name) for name in self._samples_with]

    def load(self, weights: Weights) -> None:
        """Act with these weights."""
        self._weights = weights


def make_actor(learner: Learner, algorithm: Algorithm) -> Actor:
    """Return the actor that the settings ask for."""
    if algorithm.settings.acting == "numpy":
        return NumpyActor(algorithm, learner)
    return FrameworkActor(learner, algorithm)
