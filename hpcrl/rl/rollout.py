"""What n environments did for T steps, and the advantages of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class Rollout:
    """Arrays (steps, environments, ...) of one rollout, filled step by step. Actions are whole numbers, or vectors of `numbers` real ones."""

    def __init__(self, steps: int, environments: int, inputs: int, numbers: int = 0) -> None:
        shape = (steps, environments)
        self.observations = np.zeros((*shape, inputs), np.float32)
        self.actions: NDArray[Any] = np.zeros((*shape, numbers), np.float32) if numbers else np.zeros(shape, np.int64)
        self.logs, self.values, self.rewards = (np.zeros(shape, np.float32) for _ in range(3))
        self.terminated, self.ended = (np.zeros(shape, np.float32) for _ in range(2))
        # Values of the observations that the steps led to; where an episode goes on, the next row has them.
        self.following = np.zeros(shape, np.float32)


class Samples(NamedTuple):
    """A minibatch of a rollout: observations (n, inputs), actions, their log-probabilities (n,), advantages (n,), returns (n,), and
    the values (n,) that the critic gave when the actions were taken."""

    observations: Floats
    actions: NDArray[Any]
    logs: Floats
    advantages: Floats
    returns: Floats
    values: Floats


def advantages(rollout: Rollout, last_values: Floats, gamma: float, gae_lambda: float) -> Floats:
    """Return generalised advantage estimates (steps, environments) of Schulman et al. 2016, arXiv 1506.02438, equation 16.

    An estimate never reaches beyond its episode. What follows a truncated episode has the value of its last observation
    (`rollout.following`), what follows a terminated one has none. `last_values` (environments,) are the values of the
    observations after the rollout.
    """
    steps, environments = rollout.rewards.shape
    estimates = np.zeros((steps, environments), np.float32)
    following, accumulated = last_values, np.zeros(environments, np.float32)
    for step in reversed(range(steps)):
        goes_on = 1 - rollout.ended[step]
        value = np.where(goes_on, following, rollout.following[step] * (1 - rollout.terminated[step]))
        delta = rollout.rewards[step] + gamma * value - rollout.values[step]
        accumulated = delta + gamma * gae_lambda * goes_on * accumulated
        estimates[step] = accumulated
        following = rollout.values[step]
    return estimates
