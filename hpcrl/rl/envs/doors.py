"""Doors: a grid, a wall across it with a few doors, and a goal behind the wall.

Its source is the article of the study `doors-jax-environments`, "Speeding up Training of Model-Free RL" (rlbyexample.net, 2025), and
its public code. Grid, wall, doors, actions, rewards and ends are those of the published Gymnasium environment. Episodes start from the
environment's own random generator, not from NumPy's global one. The published JAX environment differs from it in three points. They
are the options `same_column`, `extra_step` and `reward_bumping`, which are all off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from hpcrl.errors import UsageError
from hpcrl.rl.envs.make import register_own

FREE, AGENT, WALL, GOAL = range(4)
MOVES = ((0, 0), (0, 1), (1, 0), (0, -1), (-1, 0))  # rows and columns: stay, right, down, left, up
PIXELS = 10  # of a cell's side


@dataclass(frozen=True)
class Field:
    """A field without agent and goal, as tables. A place is row * size + column; the goal's place is its column, because it is in row 0.

    `cells` (places,) uint8 are free or wall. `tried` (places, 5) is where each action would lead without a wall, `after` (places, 5)
    where it leads. `distances` (places, size) float32 are those of each place from each goal.
    """

    cells: NDArray[np.uint8]
    tried: NDArray[np.int32]
    after: NDArray[np.int32]
    distances: NDArray[np.float32]


@cache
def field(size: int, doors: int) -> Field:
    """Return a field of size x size. Its wall is row size // 2, with doors at every (size // doors)-th column, the first at 0.

    Raises:
        UsageError: there is no such field.
    """
    if size < 3 or not 1 <= doors <= size:
        raise UsageError(
            f"doors: expected a size of at least 3, and 1 to size doors, got size {size} and {doors} doors"
        )
    cells = np.zeros(size**2, np.uint8)
    wall = cells.reshape(size, size)[size // 2]
    wall[:] = WALL
    wall[[door * (size // doors) for door in range(doors)]] = FREE
    places = np.arange(size**2, dtype=np.int32)[:, None]
    rows, columns = (
        np.clip(part + np.array(moves, np.int32), 0, size - 1)
        for part, moves in zip(np.divmod(places, np.int32(size)), zip(*MOVES, strict=True), strict=True)
    )
    tried = rows * np.int32(size) + columns
    across = places % size - np.arange(size)
    distances = np.sqrt((places // size) ** 2 + across**2).astype(np.float32)
    return Field(cells, tried, np.where(cells[tried] == WALL, places, tried), distances)


class Doors(gymnasium.Env):
    """Go through a door to the goal.

    - Observation: the flat grid (size^2,) uint8. A cell is 0 free, 1 the agent, 2 wall, 3 the goal.
    - Actions: 0 stay, 1 right, 2 down, 3 left, 4 up. The border and the wall stop the agent.
    - Reward: how much nearer to the goal the step led (Euclidean, float32). The goal ends the episode; its cell is then the agent's.
    - Start: the agent in the last row, the goal in row 0, each in a random column. `reset` takes ``options={"agent": column,
      "goal": column}`` instead. With `same_column` the goal is always straight above the agent.
    - With `reward_bumping` the reward is that of the cell which the agent tried to enter, also if the wall stopped it.
    - `info` has the `distance` from the goal.

    The limit of steps is Gymnasium's; :mod:`hpcrl.rl.envs.make` adds one for the option `extra_step`.

    Raises:
        UsageError: there is no field of this size with so many doors, or a column of `reset` is not in it.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 4}

    def __init__(
        self,
        size: int = 15,
        doors: int = 3,
        same_column: bool = False,
        reward_bumping: bool = False,
        render_mode: str | None = None,
    ) -> None:
        made = field(size, doors)
        self.size, self.same_column, self.render_mode = size, same_column, render_mode
        self._doors, self._reward_bumping = doors, reward_bumping
        self.observation_space = gymnasium.spaces.MultiDiscrete(np.full(size**2, 4), dtype=np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(MOVES))
        # Lists: single values of arrays are slower to read.
        self._cells, self._after = made.cells, made.after.tolist()
        self._rewarded = made.tried.tolist() if reward_bumping else self._after
        self._distances = list(map(list, made.distances))
        self._grid: NDArray[np.uint8] | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        super().reset(seed=seed)
        given = options or {}
        columns = self.np_random.integers(self.size, size=2)
        agent, goal = (int(given.get(name, column)) for name, column in zip(("agent", "goal"), columns, strict=True))
        if not 0 <= min(agent, goal) <= max(agent, goal) < self.size:
            raise UsageError(f"doors: expected columns from 0 to {self.size - 1}, got agent {agent} and goal {goal}")
        self._goal = agent if self.same_column else goal
        self._place = (self.size - 1) * self.size + agent
        self._grid = self._cells.copy()
        self._grid[self._place], self._grid[self._goal] = AGENT, GOAL
        return self._grid.copy(), self._info()

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        if (grid := self._grid) is None:
            raise gymnasium.error.ResetNeeded("doors: call reset before step")
        place, goal = self._place, self._goal
        after, rewarded = self._after[place][action], self._rewarded[place][action]
        distances = self._distances
        grid[place], grid[after] = FREE, AGENT
        self._place = after
        reward = float(distances[place][goal] - distances[rewarded][goal])
        return grid.copy(), reward, after == goal, False, self._info()

    def _info(self) -> dict[str, Any]:
        return {"distance": float(self._distances[self._place][self._goal])}

    def best_mean_return(self, seeds: Sequence[int], limit: int) -> float:
        """Return the mean over starts of the largest return within `limit` steps. It resets the environment with each of the `seeds`."""
        best = best_returns(limit, self.size, self._doors, self._reward_bumping)
        returns = []
        for seed in seeds:
            self.reset(seed=seed)
            returns.append(best[self._place % self.size, self._goal])
        return float(np.mean(returns))

    def render(self) -> NDArray[np.uint8] | None:
        """Return the grid as an image: the goal red, the wall green, the agent blue."""
        if self.render_mode != "rgb_array" or self._grid is None:
            return None
        grid = self._grid.reshape(self.size, self.size)
        colours = np.stack([grid == GOAL, grid == WALL, grid == AGENT], axis=-1).astype(np.uint8) * 255
        return colours.repeat(PIXELS, axis=0).repeat(PIXELS, axis=1)


class Paths(NamedTuple):
    """Shortest paths to the goal: steps (size, size) and returns (size, size), by the columns of agent and goal."""

    steps: NDArray[np.int64]
    returns: NDArray[np.float64]


def shortest_paths(size: int = 15, doors: int = 3) -> Paths:
    """Return the shortest path of every start. A limit of `steps.max()` steps allows all of them.

    Every path to the goal has the same return, the distance at the start. So this is the largest return, but for `reward_bumping`.
    """
    columns = np.arange(size)
    open_ = np.flatnonzero(field(size, doors).cells.reshape(size, size)[size // 2] == FREE)
    detours = np.abs(columns[:, None, None] - open_) + np.abs(columns[None, :, None] - open_)
    return Paths(size - 1 + detours.min(axis=2), np.hypot(size - 1, columns[:, None] - columns).astype(np.float64))


def best_returns(limit: int, size: int = 15, doors: int = 3, reward_bumping: bool = False) -> NDArray[np.float64]:
    """Return the largest return (size, size) within `limit` steps, by the columns of agent and goal.

    Found by `limit` steps of value iteration, so that it also holds for limits that are too short for the goal, and for rewarded
    bumping.
    """
    made = field(size, doors)
    distances = made.distances.astype(np.float64)
    rewarded = made.tried if reward_bumping else made.after
    rewards = distances[:, None] - distances[rewarded]  # (places, actions, goals)
    goes_on = made.after[:, :, None] != np.arange(size)
    values = np.zeros_like(distances)
    for _ in range(limit):
        values = (rewards + goes_on * values[made.after]).max(axis=1)
    return values[-size:]


register_own()
