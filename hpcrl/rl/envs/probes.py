"""Five environments whose values are known (A. Jones, "Debugging reinforcement learning systems", 2021).

If an agent cannot learn one of them, its number shows the faulty part: 1 the loss, 2 the network's input,
3 discounting, 4 the choice of actions, 5 both together.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

ACTIONS = {1: 1, 2: 1, 3: 1, 4: 2, 5: 2}


class Probe:
    """One of the five, with the part of Gymnasium's interface that a training loop uses; observations are (1,) float32."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.observation_space = SimpleNamespace(shape=(1,))
        self.action_space = SimpleNamespace(n=ACTIONS[number])
        self.spec = SimpleNamespace(id=f"Probe{number}", max_episode_steps=None)
        self._random = np.random.default_rng(0)
        self._shown = 0.0

    def reset(self, seed: int | None = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._shown = float(self._random.choice((-1.0, 1.0))) if self.number in (2, 5) else 0.0
        return self._observation(), {}

    def _observation(self) -> NDArray[np.float32]:
        return np.array([self._shown], np.float32)

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        if self.number == 3 and self._shown == 0.0:
            self._shown = 1.0
            return self._observation(), 0.0, False, False, {}
        reward = {
            1: 1.0,
            2: self._shown,
            3: 1.0,
            4: 1.0 if action == 1 else -1.0,
            5: self._shown * (1.0 if action == 1 else -1.0),
        }[self.number]
        return self._observation(), reward, True, False, {}


def wanted_values(number: int, gamma: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return observations (n, 1) and the true Q values (n, actions) there."""
    shown, values = {
        1: ([[0.0]], [[1.0]]),
        2: ([[-1.0], [1.0]], [[-1.0], [1.0]]),
        3: ([[0.0], [1.0]], [[gamma], [1.0]]),
        4: ([[0.0]], [[-1.0, 1.0]]),
        5: ([[-1.0], [1.0]], [[1.0, -1.0], [-1.0, 1.0]]),
    }[number]
    return np.array(shown, np.float32), np.array(values, np.float32)
