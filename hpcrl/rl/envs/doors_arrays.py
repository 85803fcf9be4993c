"""Many Doors at once, as NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.rl.envs.doors import AGENT, FREE, GOAL, field
from hpcrl.rl.interfaces import Transitions

_DRAWN = 64  # starts that are drawn at once for an environment


class DoorsArrays:
    """`count` environments as :class:`hpcrl.rl.envs.doors.Doors`, with episodes of at most `limit` steps.

    Environment i has its own random stream. With the same seeds, it starts where Doors starts. Observations are of type `dtype`.
    """

    def __init__(
        self,
        count: int,
        limit: int,
        size: int = 15,
        doors: int = 3,
        same_column: bool = False,
        reward_bumping: bool = False,
        dtype: type[np.generic] = np.float32,
    ) -> None:
        made = field(size, doors)
        self.count, self._limit, self._size, self._same_column = count, limit, size, same_column
        # Flat tables: `take` of one index is the fastest look-up.
        self._cells, self._after, self._distances = made.cells.astype(dtype), made.after.ravel(), made.distances.ravel()
        self._tried = made.tried.ravel() if reward_bumping else None
        self._rows = np.arange(count) * size**2  # where the grid of each environment begins

    def reset(self, seeds: Sequence[int]) -> NDArray[Any]:
        self._random = [np.random.default_rng(seed) for seed in seeds]
        self._starts = np.empty((self.count, _DRAWN, 2), np.int64)
        self._used = np.full(self.count, _DRAWN)
        self._places, self._goals = (np.empty(self.count, np.int64) for _ in range(2))
        self._lengths = np.zeros(self.count, np.int64)
        self._observations: NDArray[Any] = np.empty((self.count, self._size**2), self._cells.dtype)
        self._restart(self._observations, np.arange(self.count))
        self._to_goal = self._distances.take(self._places * self._size + self._goals)
        return self._observations

    def step(self, actions: NDArray[np.int64]) -> Transitions:
        moved = self._places * 5 + actions
        after = self._after.take(moved)
        distances = self._distances.take(after * self._size + self._goals)
        rewarded = distances
        if self._tried is not None:
            rewarded = self._distances.take(self._tried.take(moved) * self._size + self._goals)
        rewards = self._to_goal - rewarded
        terminated = after == self._goals
        last = self._observations.copy()
        flat = last.reshape(-1)
        flat[self._rows + self._places], flat[self._rows + after] = FREE, AGENT
        self._places, self._to_goal = after.astype(np.int64), distances
        self._lengths += 1
        ended = terminated | (self._lengths >= self._limit)
        observations = last
        if ended.any():
            observations = last.copy()
            chosen = np.flatnonzero(ended)
            self._restart(observations, chosen)
            self._to_goal[chosen] = self._distances.take(self._places[chosen] * self._size + self._goals[chosen])
        self._observations = observations
        return Transitions(observations, rewards, terminated, ended, last)

    def _restart(self, observations: NDArray[Any], chosen: NDArray[np.int64]) -> None:
        """Begin an episode in the chosen environments."""
        for index in chosen[self._used[chosen] == _DRAWN].tolist():
            self._starts[index] = self._random[index].integers(self._size, size=(_DRAWN, 2))
            self._used[index] = 0
        agents, goals = self._starts[chosen, self._used[chosen]].T
        self._used[chosen] += 1
        self._lengths[chosen] = 0
        self._goals[chosen] = goals = agents if self._same_column else goals
        self._places[chosen] = places = (self._size - 1) * self._size + agents
        observations[chosen] = self._cells
        observations[chosen, goals], observations[chosen, places] = GOAL, AGENT

    def close(self) -> None:
        """Do nothing: there are no processes."""


def of_environment(environment: Any, count: int) -> DoorsArrays:
    """Return `count` environments as a Gymnasium one, with its options and limit of steps."""
    options: Mapping[str, Any] = environment.spec.kwargs
    return DoorsArrays(count, environment.spec.max_episode_steps or 2**30, **options)
