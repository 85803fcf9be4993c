"""Run in JAX's environment: the whole loop of steps in one program, beside steps from Python, and beside a loop that returns nothing; as JSON."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hpcrl.catalogue.algorithms.random_policy import Settings
from hpcrl.rl.envs.make import gymnasium_environment
from hpcrl.rl.frameworks.jax.fused_stepping import rollout
from hpcrl.rl.make import make_training
from hpcrl.rl.runs import Run
from hpcrl.rl.smoke import Silent
from hpcrl.rl.train import train
from hpcrl.rl.vector.compiled import CompiledEnvironments, PureEnvironments
from hpcrl.telemetry.phases import PhaseClock

COUNT, STEPS = 20, 100


def run(environment: str, execution: str) -> dict[str, Any]:
    """Return what a run of the random policy has: its counts, its rewards, its phases."""
    settings = Settings(rollouts=2, rollout_steps=STEPS, environments=COUNT, stepping="compiled", evaluation_episodes=2)
    make, clock = partial(gymnasium_environment, environment, 30), PhaseClock()
    training = make_training("random_policy", settings, "jax", execution, make, Run(1, Silent(), clock))
    result = train(training)
    return {
        "steps": result.steps,
        "episodes": result.episodes,
        "reward": training.loop.measures()["reward"],
        "compiled": training.learner.compiled(),
        "stepping": clock.counts["fused" if execution == "fused" else "env_step"],
        "outcome": result.outcome,
    }


def transitions() -> bool:
    """Tell whether the whole loop has the rewards, ends and last observations of steps from Python, to the bit."""
    environment = gymnasium_environment("Doors-v0", 30)
    actions = np.random.default_rng(0).integers(5, size=(STEPS, COUNT))
    stepped, pure = CompiledEnvironments(environment, COUNT), PureEnvironments(environment)
    stepped.reset(range(COUNT))
    found = [stepped.step(row) for row in actions]
    state, (rewards, terminated, ended) = jax.jit(partial(rollout, pure))(
        pure.reset(range(COUNT)), jnp.asarray(actions)
    )
    assert sum(each.ended.sum() for each in found) > COUNT
    return all(
        np.array_equal(np.stack([getattr(each, name) for each in found]), array)
        for name, array in (("rewards", rewards), ("terminated", terminated), ("ended", ended))
    ) and np.array_equal(found[-1].observations, state.observations)


def programs() -> dict[str, str]:
    """Return the compiled text of a loop that returns its results, and of the same loop that returns nothing."""
    pure = PureEnvironments(gymnasium_environment("Doors-v0", None))
    state, actions = pure.reset(range(COUNT)), jnp.zeros((STEPS, COUNT), jnp.int32)

    def nothing(state: Any, actions: jax.Array) -> None:
        rollout(pure, state, actions)

    loops = {"results": partial(rollout, pure), "nothing": nothing}
    return {name: jax.jit(loop).lower(state, actions).compile().as_text() for name, loop in loops.items()}


if __name__ == "__main__":
    facts = {
        "runs": {name: {mode: run(name, mode) for mode in ("lazy", "fused")} for name in ("Doors-v0", "CartPole-v1")},
        "same": transitions(),
        "programs": programs(),
    }
    print(json.dumps(facts))
