"""Run by benchmarks.floors in JAX's environment: microseconds of the parts of a rollout and its updates in the compiled loop of PPO, as JSON.

The settings are those of benchmarks.training_speed. Each part is compiled alone, in a loop of itself, and the least CPU time of its calls counts. The
products are those of the network's middle layers alone, forward and backward, which take most of an update's arithmetic; the tanh are those of the
forward pass.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from time import process_time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.training_program import PPO
from hpcrl.catalogue.algorithms.ppo import Settings
from hpcrl.rl.algorithms import ppo
from hpcrl.rl.envs.jax.cartpole import WORLDS
from hpcrl.rl.frameworks import make_learner
from hpcrl.rl.frameworks.jax import fused_on_policy, fused_rollout
from hpcrl.rl.frameworks.jax.permuting import permutations
from hpcrl.rl.interfaces import Space
from hpcrl.rl.normalization import none_yet
from hpcrl.rl.weights import initial_weights

REPEATS, ROUNDS = 20, 20
LIMIT = 500  # steps of an episode
Part = Callable[..., Any]


def repeated(function: Part, times: int) -> Part:
    """Return a compiled function that calls another so many times, each with a key of its own."""

    def calls(key: Any, *given: Any) -> Any:
        return jax.lax.scan(
            lambda none, each: (none, function(jax.random.fold_in(key, each), *given)), 0, jnp.arange(times)
        )[1]

    return jax.jit(calls)


def main() -> None:
    settings = Settings(**PPO | {"hidden": tuple(PPO["hidden"])})
    algorithm, world, key = ppo.algorithm(Space(4, 2), settings), WORLDS["CartPole-v1"], jax.random.key(1)
    learner: Any = make_learner("jax", "fused", algorithm, initial_weights(algorithm, np.random.default_rng(1)))
    count, size = settings.environments, settings.environments * settings.rollout_steps
    updates = settings.epochs * size // settings.minibatch_size
    environments = fused_rollout.State(
        key=jax.random.key_data(key),
        observations=jax.vmap(world.reset)(jax.random.split(key, count)),
        values=jnp.zeros(count),
        lengths=jnp.zeros(count, jnp.int32),
        discounted=jnp.zeros(count),
        moments=jax.tree.map(jnp.asarray, {"observations": none_yet(4), "returns": none_yet()}),
    )
    carry = fused_on_policy.Carry(jnp.int32(0), environments, dict(learner.vectors), dict(learner.slots))
    vector = learner.vectors["both"]
    rows = jax.random.normal(key, (settings.minibatch_size, 4))
    column = jnp.ones(settings.minibatch_size)
    batch = (rows, jnp.zeros(len(rows), jnp.int32), -column, column, column, column, jnp.full(1, 0.2))
    wide, square = jnp.ones((len(rows), settings.hidden[0])), jnp.ones((settings.hidden[0], settings.hidden[1])) / 64

    def whole(key: Any, carry: Any) -> Any:
        own = carry.environments._replace(key=jax.random.key_data(key))
        done = fused_on_policy._rollout_and_updates(learner, ppo, world, LIMIT, carry._replace(environments=own))
        return done[0].vectors["both"].sum()

    def learning(key: Any, vector: Any, slots: Any, batch: Any) -> Any:
        noisy = (batch[0] + jax.random.uniform(key, ()), *batch[1:])
        update = learner.pure_updates["update"]
        learnt = jax.lax.fori_loop(
            0, updates, lambda _, own: update(*own, [], noisy, jnp.float32(1e-4))[:2], (vector, slots)
        )
        return learnt[0].sum()

    def products(key: Any, wide: Any, square: Any) -> Any:
        """Multiply as actor and critic do in each update: forward, for the inputs and for the weights."""

        def one(own: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], None]:
            rows, weights = own
            for _network in range(2):
                rows = jnp.maximum(rows @ weights, 0.1)
                rows = jnp.maximum(rows @ weights.T, 0.1)
                weights = jnp.minimum(rows.T @ rows, 0.01)
            return (rows, weights), None

        return jax.lax.scan(one, (wide + jax.random.uniform(key, ()), square), None, length=updates)[0][1].sum()

    def tanh(key: Any, wide: Any) -> Any:
        """Both layers of actor and critic."""
        return jax.lax.fori_loop(
            0, 4 * updates, lambda _, rows: jnp.tanh(rows), wide + jax.random.uniform(key, ())
        ).sum()

    parts: dict[str, tuple[Part, tuple[Any, ...]]] = {
        "a rollout and its updates": (whole, (carry,)),
        "the rollout": (
            lambda key, state, vector: fused_rollout.rollout(learner, world, LIMIT, [vector], state, key)[1],
            (environments, vector),
        ),
        "the permutations": (lambda key: permutations(key, settings.epochs, size), ()),
        f"the {updates} updates": (learning, (vector, learner.slots["both"], batch)),
        "products of the middle layers in these": (products, (wide, square)),
        "tanh in these": (tanh, (wide,)),
    }
    calls = {name: (repeated(function, REPEATS), given) for name, (function, given) in parts.items()}
    least = dict.fromkeys(calls, float("inf"))
    for round_ in range(ROUNDS + 1):  # the first compiles
        for name, (call, given) in calls.items():
            begun = process_time()
            jax.block_until_ready(call(key, *given))
            if round_:
                least[name] = min(least[name], process_time() - begun)
    print(json.dumps({name: 1e6 * seconds / REPEATS for name, seconds in least.items()}))


if __name__ == "__main__":
    main()
