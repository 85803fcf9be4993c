"""The uniform replay of off-policy algorithms: preallocated rings."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.rl.interfaces import Action, Actions, Arrays, Observations


class Replay:
    """Stores the last `capacity` transitions, with observations of size `inputs` and type `dtype`.

    An action is a whole number, or with `numbers` a vector of so many real ones.
    """

    prioritized = False

    def __init__(self, capacity: int, inputs: int, dtype: type[np.generic] = np.float32, numbers: int = 0) -> None:
        self._observations: Observations = np.zeros((capacity, inputs), dtype)
        self._next_observations: Observations = np.zeros((capacity, inputs), dtype)
        self._actions: Actions = np.zeros((capacity, numbers), np.float32) if numbers else np.zeros(capacity, np.int64)
        self._rewards = np.zeros(capacity, np.float32)
        self._terminated = np.zeros(capacity, np.float32)
        self._capacity = capacity
        self._next = 0
        self.size = 0

    def add(
        self,
        observation: Observations,
        action: Action,
        reward: float,
        following: Observations,
        terminated: bool,
        ended: bool = False,
        stream: int = 0,
    ) -> None:
        """Store one transition over the oldest."""
        index = self._next
        self._observations[index] = observation
        self._actions[index] = action
        self._rewards[index] = reward
        self._next_observations[index] = following
        self._terminated[index] = terminated
        self._next = (index + 1) % self._capacity
        if self.size < self._capacity:
            self.size += 1

    def add_many(
        self,
        observations: Observations,
        actions: Actions,
        rewards: NDArray[np.float32],
        following: Observations,
        terminated: NDArray[np.bool_],
        ended: NDArray[np.bool_] | None = None,
    ) -> None:
        """Store transitions (n, ...) over the oldest: the same as that many calls of :meth:`add`."""
        count, capacity = len(actions), self._capacity
        kept = slice(max(0, count - capacity), count)
        places = (self._next + np.arange(kept.start, count)) % capacity
        self._observations[places], self._actions[places] = observations[kept], actions[kept]
        self._rewards[places], self._next_observations[places] = rewards[kept], following[kept]
        self._terminated[places] = terminated[kept]
        self._next = (self._next + count) % capacity
        self.size = min(self.size + count, capacity)

    def add_block(
        self,
        observations: Observations,
        actions: Actions,
        rewards: NDArray[np.floating[Any]],
        following: Observations,
        terminated: NDArray[np.bool_],
        ended: NDArray[np.bool_],
        stream: int,
    ) -> None:
        """Store transitions (n, ...) of one stream, in their order: the same as that many calls of :meth:`add`."""
        self.add_many(observations, actions, rewards.astype(np.float32), following, terminated)

    def sample(self, count: int, generator: np.random.Generator, step: int = 0) -> Arrays:
        """Draw `count` transitions uniformly, with replacement.

        Returns observations (n, inputs), actions (n,) int64 or (n, numbers), rewards (n,) float32, next observations (n, inputs),
        and terminated (n,) float32: 1.0 where the episode ended by itself (not by truncation).
        """
        return self._drawn(generator, (count,))

    def sample_many(self, batches: int, count: int, generator: np.random.Generator, step: int = 0) -> Arrays:
        """Draw batches, stacked: arrays (batches, n, ...), the same as from that many calls of :meth:`sample`."""
        return self._drawn(generator, (batches, count))

    def _drawn(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Arrays:
        chosen = generator.integers(0, self.size, shape)
        return (
            self._observations.take(chosen, 0),  # of rows faster than an index
            self._actions.take(chosen, 0),
            self._rewards[chosen],
            self._next_observations.take(chosen, 0),
            self._terminated[chosen],
        )

    def prioritize(self, losses: object) -> None:
        """Do nothing: every transition is as likely as any other."""

    def facts(self) -> dict[str, Any]:
        """Return nothing: the loop's stream draws."""
        return {}

    def load_facts(self, facts: dict[str, Any]) -> None:
        """Do nothing."""

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return the arrays for a checkpoint."""
        size = self.size
        return {
            "observations": self._observations[:size],
            "next_observations": self._next_observations[:size],
            "actions": self._actions[:size],
            "rewards": self._rewards[:size],
            "terminated": self._terminated[:size],
            "next": np.array([self._next]),
        }

    def load_state(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Restore what :meth:`state` returned."""
        self.size = len(state["actions"])
        for name in ("observations", "next_observations", "actions", "rewards", "terminated"):
            getattr(self, f"_{name}")[: self.size] = state[name]
        self._next = int(state["next"][0])
