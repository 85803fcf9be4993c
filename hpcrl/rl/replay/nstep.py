"""The replay of Rainbow: n-step returns, drawn uniformly or by priority."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.rl.interfaces import Action, Arrays
from hpcrl.rl.replay.sumtree import SumTree

SMALLEST = 1e-6  # priority: without it a transition with no error would never be drawn again
_Window = deque[tuple[NDArray[np.float32], Action, float]]  # observation, action, reward
# Observation, action, return, the observation after it, discount.
_Complete = tuple[NDArray[np.float32], Action, float, NDArray[np.float32], float]
_STORED = ("observations", "actions", "returns", "following", "discounts")


class NStepReplay:
    """Stores the last `capacity` windows of at most `n_step` transitions, which never reach into another episode.

    A window has its first observation and action, the return R = r_0 + gamma r_1 + ... of its k rewards, the observation
    after them, and the discount of that: gamma^k, or 0 where the episode terminated. An episode's last windows are shorter.
    """

    def __init__(self, capacity: int, inputs: int, settings: Any) -> None:
        self._settings, self._capacity = settings, capacity
        self._observations, self._following = (np.zeros((capacity, inputs), np.float32) for _ in range(2))
        self._actions = np.zeros(capacity, np.int64)
        self._returns, self._discounts = (np.zeros(capacity, np.float32) for _ in range(2))
        self.prioritized: bool = settings.prioritized
        self._tree = SumTree(capacity) if settings.prioritized else None
        self._powers = [settings.gamma**steps for steps in range(settings.n_step + 1)]
        self._largest = 1.0
        self._pending: defaultdict[int, _Window] = defaultdict(deque)
        self._drawn = np.zeros(0, np.int64)
        self._next = self.size = 0

    def add(
        self,
        observation: NDArray[np.float32],
        action: Action,
        reward: float,
        following: NDArray[np.float32],
        terminated: bool,
        ended: bool,
        stream: int = 0,
    ) -> None:
        """Take one transition; store the windows that are complete with it. Windows are of one stream."""
        self._store(self._complete(observation, action, reward, following, terminated, ended, stream))

    def add_many(
        self,
        observations: NDArray[np.float32],
        actions: NDArray[np.int64],
        rewards: NDArray[np.float32],
        following: NDArray[np.float32],
        terminated: NDArray[np.bool_],
        ended: NDArray[np.bool_],
    ) -> None:
        """Take a transition (n, ...) of each of the streams 0 to n - 1: the same as that many calls of :meth:`add`."""
        # A window keeps its first observation, and an environment may use its array again.
        columns = (
            observations.copy(),
            actions.tolist(),
            rewards.tolist(),
            following,
            terminated.tolist(),
            ended.tolist(),
        )
        windows: list[_Complete] = []
        for stream, (shown, action, reward, after, over, last) in enumerate(zip(*columns, strict=True)):
            windows += self._complete(shown, action, reward, after, over, last, stream)
        self._store(windows)

    def add_block(
        self,
        observations: NDArray[np.float32],
        actions: NDArray[np.int64],
        rewards: NDArray[np.floating[Any]],
        following: NDArray[np.float32],
        terminated: NDArray[np.bool_],
        ended: NDArray[np.bool_],
        stream: int,
    ) -> None:
        """Take transitions (n, ...) of one stream, in their order: the same as that many calls of :meth:`add`.

        The arrays must not be used again: a window keeps its first observation.
        """
        columns = (observations, actions.tolist(), rewards.tolist(), following, terminated.tolist(), ended.tolist())
        windows: list[_Complete] = []
        for shown, action, reward, then, over, last in zip(*columns, strict=True):
            windows += self._complete(shown, action, reward, then, over, last, stream)
        self._store(windows)

    def _complete(
        self,
        observation: NDArray[np.float32],
        action: Action,
        reward: float,
        following: NDArray[np.float32],
        terminated: bool,
        ended: bool,
        stream: int,
    ) -> list[_Complete]:
        """Take one transition, and return the windows of its stream that are complete with it."""
        pending, complete = self._pending[stream], []
        # Rounded as by environments that step together.
        pending.append((observation, action, float(np.float32(reward))))
        while pending and (ended or len(pending) == self._settings.n_step):
            value = 0.0
            for power, (_, _, earned) in zip(self._powers, pending, strict=False):
                value += power * earned
            discount = 0.0 if terminated else self._powers[len(pending)]
            complete.append((*pending.popleft()[:2], value, following, discount))
        return complete

    def _store(self, windows: list[_Complete]) -> None:
        places = []
        for observation, action, value, following, discount in windows:
            place = self._next
            self._observations[place], self._actions[place] = observation, action
            self._returns[place], self._following[place], self._discounts[place] = value, following, discount
            self._next = (place + 1) % self._capacity
            self.size = min(self.size + 1, self._capacity)
            places.append(place)
        if self._tree and places:
            self._tree.set(np.array(places), np.full(len(places), self._largest))

    def sample(self, count: int, generator: np.random.Generator, step: int = 0) -> Arrays:
        """Draw `count` windows: observations, actions, returns, following, discounts, importance weights.

        The weights are (size * probability)^-beta, divided by the largest of the batch; beta goes linearly to 1.
        """
        if self._tree is None:
            self._drawn = generator.integers(0, self.size, count)
            importance = np.ones(count, np.float32)
        else:
            self._drawn = self._tree.draw(count, generator)
            first, steps = self._settings.initial_importance, self._settings.total_steps
            beta = first + (1 - first) * min(1.0, step / steps)
            weights = (self.size * self._tree.priorities(self._drawn) / self._tree.total) ** -beta
            importance = (weights / weights.max()).astype(np.float32)
        return (*(getattr(self, f"_{name}")[self._drawn] for name in _STORED), importance)

    def sample_many(self, batches: int, count: int, generator: np.random.Generator, step: int = 0) -> Arrays:
        """Draw batches, stacked: arrays (batches, n, ...)."""
        drawn = [self.sample(count, generator, step) for _ in range(batches)]
        return tuple(np.stack(arrays) for arrays in zip(*drawn, strict=True))

    def prioritize(self, losses: NDArray[np.float32]) -> None:
        """Take the losses (n,) of the windows that were drawn last as their priorities."""
        assert self._tree is not None
        priorities = (np.abs(losses.astype(np.float64)) + SMALLEST) ** self._settings.priority_exponent
        self._largest = max(self._largest, float(priorities.max()))
        self._tree.set(self._drawn, priorities)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the arrays for a checkpoint. Windows that are not complete are left out: the episode is not continued."""
        size = self.size
        arrays: dict[str, NDArray[Any]] = {name: getattr(self, f"_{name}")[:size] for name in _STORED}
        if self._tree:
            arrays["priorities"] = self._tree.priorities(np.arange(size))
        return arrays | {"next": np.array([self._next]), "largest": np.array([self._largest])}

    def load_state(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state` returned."""
        self.size = len(state["actions"])
        for name in _STORED:
            getattr(self, f"_{name}")[: self.size] = state[name]
        if self._tree and self.size:
            self._tree.set(np.arange(self.size), state["priorities"])
        self._next, self._largest = int(state["next"][0]), float(state["largest"][0])
