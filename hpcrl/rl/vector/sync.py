"""Environments in this process, one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.rl.interfaces import Actions, Transitions


class SyncEnvironments:
    """The baseline of all ways of stepping."""

    def __init__(self, environments: Sequence[Any]) -> None:
        self.count = len(environments)
        self._environments = environments

    def reset(self, seeds: Sequence[int]) -> NDArray[np.float32]:
        starts = [environment.reset(seed=seed)[0] for environment, seed in zip(self._environments, seeds, strict=True)]
        self._last = np.stack(starts).astype(np.float32)
        return self._last

    def step(self, actions: Actions) -> Transitions:
        count = self.count
        given = actions if actions.ndim > 1 else actions.tolist()
        last = np.empty_like(self._last)
        rewards = np.empty(count, np.float32)
        terminated, ended = np.empty(count, np.bool_), np.empty(count, np.bool_)
        for index, (environment, action) in enumerate(zip(self._environments, given, strict=True)):
            last[index], rewards[index], over, cut, _ = environment.step(action)
            terminated[index], ended[index] = over, over or cut
        observations = last
        if ended.any():
            observations = last.copy()
            for place in np.flatnonzero(ended).tolist():
                observations[place] = self._environments[place].reset()[0]
        self._last = last
        return Transitions(observations, rewards, terminated, ended, last)

    def close(self) -> None:
        """Do nothing: there are no processes."""


def make(make_environment: Callable[[], Any], count: int) -> SyncEnvironments:
    """Return `count` environments."""
    return SyncEnvironments([make_environment() for _ in range(count)])
