"""Run by benchmarks.topologies in PyTorch's environment: the training of topology_program.py with Gymnasium's AsyncVectorEnv.

One process acts for all environments and learns, with hpcrl's learner, replay and updates; the environments step in processes of
their own, all at a time. Prints the wall time.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from time import perf_counter, sleep
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from benchmarks.topology_program import Silence
from hpcrl.catalogue.algorithms.dqn import Settings
from hpcrl.rl.algorithms import dqn
from hpcrl.rl.frameworks import make_learner
from hpcrl.rl.interfaces import Space
from hpcrl.rl.loops.acting import make_actor
from hpcrl.rl.loops.updating import Updates, warm_up
from hpcrl.rl.runs import Run
from hpcrl.rl.schedules import exploration
from hpcrl.rl.weights import initial_weights
from hpcrl.telemetry.phases import PhaseClock


class Slowed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Every step takes a while longer."""

    def __init__(self, seconds: float) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self._seconds = seconds

    def step(self, action: Any) -> Any:
        sleep(self._seconds)
        return super().step(action)


def main(text: str, count: int) -> None:
    given = json.loads(text)
    settings = Settings(**{**given, "hidden": tuple(given["hidden"])})
    reporter: Any = Silence()
    run, algorithm = Run(1, reporter, PhaseClock()), dqn.algorithm(Space(4, 2), settings)
    learner = make_learner(
        "torch", "eager", algorithm, initial_weights(algorithm, np.random.default_rng(1)), "cpu", None
    )
    actor, draw = make_actor(learner, algorithm), np.random.default_rng(2)
    updates = Updates(algorithm, dqn, learner, run, actor.refresh)
    warm_up(algorithm, dqn, learner, run)
    environments = AsyncVectorEnv(
        [partial(Slowed, settings.step_latency)] * count, autoreset_mode=AutoresetMode.SAME_STEP
    )
    observations, step, interval = environments.reset(seed=1)[0], 0, settings.train_interval
    begun = perf_counter()
    while step < settings.total_steps:
        random = draw.random(count) < exploration(settings, step, 0)
        actions = np.where(random, draw.integers(2, size=count), actor.act(observations))
        following, rewards, terminated, truncated, facts = environments.step(actions)
        ended = terminated | truncated
        for number in range(count):
            last = facts["final_obs"][number] if ended[number] else following[number]
            updates.memory.add(
                observations[number], int(actions[number]), float(rewards[number]), last, bool(terminated[number]), bool(ended[number]), number
            )  # fmt: skip
        observations = following.copy()
        before, step = step, step + count
        updates.sync(before, step)
        if step % interval < count and step >= settings.learning_starts:
            updates.learn(step)
    wall = perf_counter() - begun
    environments.close()
    print(json.dumps({"wall": wall}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
