"""Epsilon-greedy choices for environments that step together."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hpcrl.rl.interfaces import ChooseMany, Observations


def epsilon_greedy(
    draw: np.random.Generator,
    actions: int,
    epsilon: Callable[[int], float],
    greedy: Callable[[Observations], NDArray[np.int64]],
    shared_coin: bool = False,
) -> ChooseMany:
    """Return the choice among `actions`: random with probability `epsilon`(environment step), otherwise `greedy`(observations).

    Each environment has its own coin, or all have a shared one.
    """

    def choose(observations: Observations, step: int) -> NDArray[np.int64]:
        count = len(observations)
        coins = draw.random(1 if shared_coin else count)
        explores = np.broadcast_to(coins < epsilon(step), (count,))
        chosen = np.empty(count, np.int64)
        chosen[explores] = draw.integers(actions, size=np.count_nonzero(explores))
        if not explores.all():
            # For all of them: a compiled policy keeps one shape.
            chosen[~explores] = greedy(observations)[~explores]
        return chosen

    return choose
