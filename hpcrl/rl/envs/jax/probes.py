"""The probes of hpcrl.rl.envs.probes as pure JAX functions."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from hpcrl.rl.envs.jax.world import World
from hpcrl.rl.envs.probes import ACTIONS


def probe(number: int) -> World:
    """Return one of the five; a state is its observation (1,)."""

    def reset(key: jax.Array) -> jax.Array:
        if number in (2, 5):
            return jnp.where(jax.random.bernoulli(key), 1.0, -1.0)[None]
        return jnp.zeros(1)

    def step(state: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        sign = jnp.where(action == 1, 1.0, -1.0)
        if number == 3:
            last = state[0] == 1.0
            return jnp.ones(1), jnp.where(last, 1.0, 0.0), last
        reward = {1: jnp.float32(1.0), 2: state[0], 4: sign, 5: state[0] * sign}[number]
        return state, reward, jnp.bool_(True)

    return World(1, ACTIONS[number], reset, step)


WORLDS = {f"Probe{number}": probe(number) for number in ACTIONS}
