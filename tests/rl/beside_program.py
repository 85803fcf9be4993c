"""Run where JAX is installed beside a learner's framework: environments in JAX under that learner, as JSON."""

from __future__ import annotations

import json
import sys
import warnings
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.catalogue.algorithms.dqn import Settings
from hpcrl.rl.envs.make import gymnasium_environment
from hpcrl.rl.loops.exploring import SEEDS_APART
from hpcrl.rl.loops.exploring_many import ManyExplorer
from hpcrl.rl.loops.off_policy import OffPolicyLoop
from hpcrl.rl.make import make_training
from hpcrl.rl.runs import Run
from hpcrl.rl.train import train
from hpcrl.telemetry.phases import PhaseClock
from tests.rl.builders import Reports

COUNT = 8
SETTINGS = Settings(
    total_steps=2400, hidden=(16,), learning_rate=1e-2, batch_size=16, learning_starts=96, train_interval=24, updates=3,
    target_interval=50, exploration_fraction=0.5, evaluation_interval=1200, evaluation_episodes=3,
    environments=COUNT, stepping="compiled",
)  # fmt: skip
make_doors = partial(gymnasium_environment, "Doors-v0", 30, {"size": 5})


def trained(framework: str, execution: str) -> dict[str, Any]:
    """Train, and return what was stored beside what JAX's own functions do with the same seeds and actions."""
    clock, reports = PhaseClock(), Reports()
    training = make_training("dqn", SETTINGS, framework, execution, make_doors, Run(1, reports, clock))
    loop = training.loop
    assert isinstance(loop, OffPolicyLoop) and isinstance(loop._explorer, ManyExplorer)
    vector: Any = loop._explorer._environments
    programs = vector._step._cache_size()
    result = train(training)
    stored = loop._updates.memory.state()
    return {
        "outcome": result.outcome,
        "episodes": len(reports.episodes),
        "learnt": max(np.abs(array).max() for array in training.learner.weights("online").values()).item(),
        "programs": [programs, vector._step._cache_size()],
        "compiling": [clock.counts["compile"], clock.seconds["compile"]],
        "steps": clock.counts["env_step"],
        "same": stored_as_by_jax(stored),
    }


def stored_as_by_jax(stored: dict[str, NDArray[Any]]) -> bool:
    """Tell whether the transitions of a replay are those of the pure functions, to the bit."""
    import jax

    from hpcrl.rl.vector.compiled import PureEnvironments

    pure = PureEnvironments(make_doors())
    step, state = jax.jit(pure.step), pure.reset([1 + SEEDS_APART * index for index in range(COUNT)])
    parts = [stored[name].reshape(-1, COUNT, *stored[name].shape[1:]) for name in _STORED]
    for observations, actions, rewards, following, terminated in zip(*parts, strict=True):
        if not np.array_equal(observations, state.observations):
            return False
        state, found = step(state, actions)
        wanted = (found.rewards, found.last, found.terminated)
        if not all(map(np.array_equal, (rewards, following, terminated), wanted)):
            return False
    return len(parts[0]) == SETTINGS.total_steps // COUNT


_STORED = ("observations", "actions", "rewards", "next_observations", "terminated")


def settled() -> list[Any]:
    """Return how JAX computes here."""
    import jax

    return [jax.config.jax_default_matmul_precision, jax.config.read("jax_cpu_enable_async_dispatch")]


if __name__ == "__main__":
    warnings.simplefilter("error", UserWarning)
    facts = {"training": trained(*sys.argv[1:]), "settled": settled()}
    print(json.dumps(facts))
