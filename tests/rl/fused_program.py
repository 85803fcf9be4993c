"""Run in JAX's environment: what the compiled loop stores, when it learns, and how it goes on, as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hpcrl.catalogue.algorithms.dqn import Settings
from hpcrl.catalogue.algorithms.ppo import Settings as PpoSettings
from hpcrl.rl.algorithms import ppo
from hpcrl.rl.envs.jax import cartpole
from hpcrl.rl.envs.jax.registry import world_of
from hpcrl.rl.frameworks.jax import fused_dqn
from hpcrl.rl.frameworks.jax.fused_off_policy import FusedLoop, _advance
from hpcrl.rl.frameworks.jax.fused_on_policy import FusedLoop as OnPolicyLoop
from hpcrl.rl.frameworks.jax.fused_rollout import State, rollout
from hpcrl.rl.frameworks.jax.permuting import permutations
from hpcrl.rl.interfaces import Space
from hpcrl.rl.runs import Run as RunOfTraining
from hpcrl.rl.smoke import Silent
from hpcrl.telemetry.phases import PhaseClock
from tests.rl.builders import dqn, exact, first_weights, learner_of, made_of

CONFIG = Settings(
    total_steps=180, hidden=(16,), batch_size=32, buffer_size=500, learning_rate=1e-2, learning_starts=100,
    train_interval=10, updates=5, target_interval=10, initial_epsilon=1.0, final_epsilon=1.0, evaluation_interval=90,
)  # fmt: skip


class Run:
    def __init__(self, config: Settings = CONFIG, name: str = "CartPole-v1", most: int = 5, seed: int = 1) -> None:
        made = dqn(config, Space(4, 2))
        weights = first_weights(made)
        self.first = weights["online"]
        self.learner: Any = learner_of("jax", "fused", made, weights)
        environment = SimpleNamespace(spec=SimpleNamespace(id=name, max_episode_steps=most))
        self.loop = FusedLoop(self.learner, environment, RunOfTraining(seed, Silent(), PhaseClock()))

    def to(self, step: int) -> Run:
        assert self.loop.advance(step, lambda: False)
        return self

    def stored(self) -> dict[str, Any]:
        return self.loop.state()[0]

    def unchanged(self, which: str = "online") -> bool:
        state = self.learner.state()
        return all(np.array_equal(state[f"{which}/{name}"], each) for name, each in self.first.items())


def copied(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name: np.array(each) for name, each in arrays.items()}


def permuted() -> dict[str, Any]:
    """Return what is known of permutations: chi-square of all those of four numbers, whether others have every
    number once, whether two are alike, and the share of numbers that a larger one follows."""
    four = np.asarray(permutations(jax.random.key(2), 48_000, 4))
    counts = np.unique(four, axis=0, return_counts=True)[1]
    several = [np.asarray(permutations(jax.random.key(3), 2, size)) for size in (1, 2, 1_000, 1_024, 70_000)]
    return {
        "chi-square of 23": float(((counts - 2_000) ** 2 / 2_000).sum()) if len(counts) == 24 else float("inf"),
        "whole": all((np.sort(each, axis=1) == np.arange(each.shape[1])).all() for each in several),
        "alike": bool((several[3][0] == several[3][1]).mean() > 0.01),
        "ascents": float((np.diff(several[4]) > 0).mean()),
    }


def values_apart() -> float:
    """Return the largest difference between the values of a rollout's steps and those of the specification, in parts of their spread."""
    made = made_of("ppo", PpoSettings(environments=3, rollout_steps=7, hidden=(8,)))
    weights = first_weights(made)
    learner: Any = learner_of("jax", "fused", made, weights)
    environment = SimpleNamespace(spec=SimpleNamespace(id="CartPole-v1", max_episode_steps=5))
    vectors = [learner.vectors[name] for name in (made.acts_with, *made.samples_with)]
    world, limit = world_of(environment)
    nothing, first = jnp.zeros(3), jax.vmap(world.reset)(jax.random.split(jax.random.key(1), 3))
    begun = State(jax.random.key_data(jax.random.key(0)), first, nothing, jnp.zeros(3, jnp.int32), nothing, {})
    _, (transitions, _) = rollout(learner, world, limit, vectors, begun, jax.random.key(0))
    shown = np.asarray(transitions.observations).reshape(21, 4)
    values = exact(made, weights).sample(shown, np.zeros((21, 2)))[2].reshape(7, 3)
    return float(np.abs(np.asarray(transitions.values) - values).max() / values.std())


def steps_apart() -> tuple[float, int]:
    """Return the largest difference between what single steps lead to, and steps that are taken together up to an update; and the number of updates.

    The target network is renewed at steps that are no multiple of an interval.
    """
    ends = []
    for interval in (90, 91):  # 91 and the train interval have no common divisor
        config = replace(
            CONFIG, learning_starts=20, target_interval=15, initial_epsilon=0.5, evaluation_interval=interval
        )
        run = Run(config)
        world, limit = world_of(SimpleNamespace(spec=SimpleNamespace(id="CartPole-v1", max_episode_steps=5)))
        carry, episodes = _advance(run.learner, fused_dqn, world, limit, run.loop._carry(), 90)
        ends.append(jax.tree.leaves((carry, episodes)))
        updates = int(carry.slots.count)
    apart = max(
        float(np.abs(np.asarray(one, float) - np.asarray(other, float)).max()) for one, other in zip(*ends, strict=True)
    )
    return apart, updates


class Told(Silent):
    """A reporter that keeps the episodes."""

    def __init__(self) -> None:
        self.episodes: list[tuple[int, float, int]] = []

    def episode(self, step: int, value: float, length: int) -> None:
        self.episodes.append((step, value, length))


def rollouts() -> list[dict[str, Any]]:
    """Return what three rollouts of one call, and of three calls, lead to."""
    made = made_of(
        "ppo", PpoSettings(environments=3, rollout_steps=7, minibatch_size=7, epochs=2, hidden=(8,), total_steps=1_000)
    )
    environment, found = SimpleNamespace(spec=SimpleNamespace(id="CartPole-v1", max_episode_steps=5)), []
    for ends in ((63,), (21, 42, 63)):
        told = Told()
        learner: Any = learner_of("jax", "fused", made, first_weights(made))
        loop = OnPolicyLoop(learner, ppo, environment, RunOfTraining(3, told, PhaseClock()))
        for end in ends:
            assert loop.advance(end, lambda: False)
        weights = {name: array.tolist() for name, array in learner.weights("both").items()}
        found.append({"step": loop.step, "episodes": told.episodes, "measures": loop.measures(), "weights": weights})
    return found


def main() -> None:
    run = Run().to(90)
    stored, learner = copied(run.loop.state()[0]), copied(run.learner.state())
    kept = {name: each[:90] for name, each in run.stored().items() if each.ndim and len(each) == 500}
    following = np.asarray(jax.vmap(cartpole.step)(kept["observations"], kept["actions"])[0])
    facts = {
        "permutations": permuted(),
        "values apart": values_apart(),
        "steps apart": steps_apart(),
        "rollouts": rollouts(),
        "cut off": [int(kept["terminated"].sum()), int(run.loop.episodes)],
        "follows": bool(np.allclose(kept["following"], following, atol=1e-6)),
        "learnt at 90": not run.unchanged(),
        "learnt at 180": not run.to(180).unchanged(),
        "target renewed": not run.unchanged("target"),
    }
    second = run.stored()
    facts["stretches differ"] = second["actions"][:90].tolist() != second["actions"][90:180].tolist()
    facts["exploring"] = float(kept["actions"].mean())
    ends = copied(run.learner.state()), copied(run.loop.state()[0])

    run.learner.load_state(learner)
    run.loop.load_state(stored, {})
    run.loop.step = 90
    run.to(180)
    again = copied(run.learner.state()), copied(run.loop.state()[0])
    facts["resumed"] = all(
        np.array_equal(found[name], each)
        for whole, found in zip(ends, again, strict=True)
        for name, each in whole.items()
    )

    other = Run(replace(CONFIG, learning_starts=180), seed=3).to(90)
    facts["seeds differ"] = other.stored()["observations"][:90].tolist() != kept["observations"].tolist()
    facts["one update at the last step"] = not other.to(180).unchanged()
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
