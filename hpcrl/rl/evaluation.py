"""Scores of a policy: greedy episodes in environments of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def evaluate(
    act: Callable[[NDArray[np.float32]], NDArray[np.int64]], environments: Sequence[Any], seed: int
) -> NDArray[np.float64]:
    """Play one greedy episode in each environment, side by side, and return their returns (n,).

    The policy always sees all n observations, finished ones too, so that a compiled policy keeps one shape.
    Environment i starts from seed `seed + i`, so that every evaluation sees the same starts.
    """
    observations = np.stack([each.reset(seed=seed + index)[0] for index, each in enumerate(environments)]).astype(
        np.float32
    )
    returns = np.zeros(len(environments))
    running = list(range(len(environments)))
    while running:
        actions = act(observations)
        for index in list(running):
            observation, reward, terminated, truncated, _ = environments[index].step(int(actions[index]))
            observations[index] = observation
            returns[index] += float(reward)
            if terminated or truncated:
                running.remove(index)
    return returns
