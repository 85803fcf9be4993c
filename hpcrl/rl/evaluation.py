"""Scores of a policy: greedy episodes in separate environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.rl.interfaces import Act


def start_seeds(seed: int, stream: int, count: int) -> list[int]:
    """Return the seeds of the starts of evaluations; no two training seeds or streams share one."""
    return [int(number) for number in np.random.SeedSequence([seed, stream]).generate_state(count)]


def evaluate(
    act: Act, environments: Sequence[Any], seeds: Sequence[int], dtype: type[np.generic] = np.float32
) -> NDArray[np.float64]:
    """Play one greedy episode from each of the starts `seeds`, and return their returns (n,). `dtype` is that of observations.

    One episode per environment runs at a time. The policy always gets one observation per environment, also of
    finished episodes, so that a compiled policy keeps one shape.
    """
    width = len(environments)
    returns = [
        _side_by_side(act, environments, seeds[first : first + width], dtype) for first in range(0, len(seeds), width)
    ]
    return np.concatenate(returns)


def _side_by_side(
    act: Act, environments: Sequence[Any], seeds: Sequence[int], dtype: type[np.generic]
) -> NDArray[np.float64]:
    starts = [environment.reset(seed=seed)[0] for environment, seed in zip(environments, seeds, strict=False)]
    observations = np.stack([*starts, *[starts[0]] * (len(environments) - len(starts))]).astype(dtype)
    returns = np.zeros(len(starts))
    running = list(range(len(starts)))
    while running:
        actions = act(observations)
        for index in list(running):
            observation, reward, terminated, truncated, _ = environments[index].step(
                actions[index] if actions.ndim > 1 else int(actions[index])
            )
            observations[index] = observation
            returns[index] += float(reward)
            if terminated or truncated:
                running.remove(index)
    return returns
