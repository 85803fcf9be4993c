"""Run by benchmarks.crossing in NumPy's environment: environments of several costs, stepped in several ways, as JSON.

The first argument is the number of environments, the others are costs in microseconds.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np

from hpcrl.rl.vector.make import make_vector

STEPS, ROUNDS = 100, 7
WAYS = ("sync", "processes", "pipes")


class Costly:
    """An environment as small as CartPole, whose step counts to `loops`: the core is busy, as with a simulator. Episodes do not end."""

    spec = None
    observation_space = SimpleNamespace(shape=(4,))
    action_space = SimpleNamespace(n=2)

    def __init__(self, loops: int) -> None:
        self._loops, self._shown = loops, np.zeros(4, np.float32)

    def reset(self, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        return self._shown, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        for _ in range(self._loops):
            pass
        return self._shown, 1.0, False, False, {}


def cost_of(loops: int, times: int) -> float:
    """Return the microseconds of a step, the least of some rounds."""
    environment, least = Costly(loops), float("inf")
    for _ in range(ROUNDS):
        begun = perf_counter()
        for _ in range(times):
            environment.step(0)
        least = min(least, perf_counter() - begun)
    return 1e6 * least / times


def main(count: int, *costs: int) -> None:
    of_a_loop = (cost_of(100_000, 5) - cost_of(0, 1_000)) / 100_000
    rows = []
    for cost in costs:
        loops = round(cost / of_a_loop)
        made = {way: make_vector(way, partial(Costly, loops), count) for way in WAYS}
        least = dict.fromkeys(WAYS, float("inf"))
        actions = np.zeros(count, np.int64)
        for environments in made.values():
            environments.reset(range(count))
            environments.step(actions)
        for _ in range(ROUNDS):  # in turn, because other work on the machine comes and goes
            for way, environments in made.items():
                begun = perf_counter()
                for _ in range(STEPS):
                    environments.step(actions)
                least[way] = min(least[way], perf_counter() - begun)
        for environments in made.values():
            environments.close()
        rows.append(
            {"cost": cost_of(loops, 1_000)} | {way: 1e6 * seconds / STEPS / count for way, seconds in least.items()}
        )
    print(json.dumps(rows))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
