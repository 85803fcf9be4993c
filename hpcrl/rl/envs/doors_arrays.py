"""Many Doors at once, as NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.rl.envs.doors import AGENT, GOAL, MOVES, field
from hpcrl.rl.interfaces import Transitions

_DRAWN = 64  # starts that are drawn at once for an environment
_KEPT = 2**24  # numbers of all observations, up to which they are kept


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
        # A state is place * size + goal. Flat tables of (state, action): with few environments a step costs its number of calls.
        goals = np.arange(size)[:, None]
        after, rewarded = made.after[:, None], (made.tried if reward_bumping else made.after)[:, None]
        self._after = (after.astype(np.int64) * size + goals).ravel()
        self._rewards = (made.distances[:, :, None] - made.distances[rewarded, goals]).ravel()
        self._terminated = (after == goals).ravel()
        self._cells, self._kept = made.cells.astype(dtype), None
        if size**5 <= _KEPT:
            self._kept = self._observed(np.arange(size**3))

    def reset(self, seeds: Sequence[int]) -> NDArray[Any]:
        self._random = [np.random.default_rng(seed) for seed in seeds]
        self._starts = np.empty((self.count, _DRAWN, 2), np.int64)
        self._used = np.full(self.count, _DRAWN)
        self._states = np.empty(self.count, np.int64)
        self._time, self._limits = (
            0,
            np.empty(self.count, np.int64),
        )  # steps so far, and at which of them an episode is cut
        self._restart(np.arange(self.count))
        return self._observed(self._states)

    def step(self, actions: NDArray[np.int64]) -> Transitions:
        moved = self._states * len(MOVES) + actions
        self._states = self._after.take(moved)
        ended = terminated = self._terminated.take(moved)
        observations = last = self._observed(self._states)
        self._time += 1
        if self._time >= self._next_limit:
            ended = terminated | (self._limits <= self._time)
        if np.count_nonzero(ended):  # faster than `any`
            observations = last.copy()
            chosen = np.flatnonzero(ended)
            self._restart(chosen)
            observations[chosen] = self._observed(self._states[chosen])
        return Transitions(observations, self._rewards.take(moved), terminated, ended, last)

    def _observed(self, states: NDArray[np.int64]) -> NDArray[Any]:
        """Return new observations (n, size^2) of the states (n,)."""
        if self._kept is not None:
            return self._kept.take(states, axis=0)
        observations = np.repeat(self._cells[None], len(states), axis=0)
        places, goals = np.divmod(states, self._size)
        rows = np.arange(len(states))
        observations[rows, goals], observations[rows, places] = GOAL, AGENT
        return observations

    def _restart(self, chosen: NDArray[np.int64]) -> None:
        """Begin an episode in the chosen environments."""
        for index in chosen[self._used[chosen] == _DRAWN].tolist():
            self._starts[index] = self._random[index].integers(self._size, size=(_DRAWN, 2))
            self._used[index] = 0
        agents, goals = self._starts[chosen, self._used[chosen]].T
        self._used[chosen] += 1
        goals = agents if self._same_column else goals
        self._states[chosen] = ((self._size - 1) * self._size + agents) * self._size + goals
        self._limits[chosen] = self._time + self._limit
        self._next_limit = int(self._limits.min())

    def close(self) -> None:
        """Do nothing: there are no processes."""


def of_environment(environment: Any, count: int) -> DoorsArrays:
    """Return `count` environments as a Gymnasium one, with its options and limit of steps."""
    options: Mapping[str, Any] = environment.spec.kwargs
    return DoorsArrays(count, environment.spec.max_episode_steps or 2**30, **options)
