"""The probes of hpcrl.rl.envs.probes as pure JAX functions."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from hpcrl.rl.envs.probes import ACTIONS as _ACTIONS


class Probe:
    """One of the five; a state is its observation (1,)."""

    INPUTS = 1

    def __init__(self, number: int) -> None:
        self.number = number
        self.ACTIONS = _ACTIONS[number]

    def reset(self, key: jax.Array) -> jax.Array:
        if self.number in (2, 5):
            return jnp.where(jax.random.bernoulli(key), 1.0, -1.0)[None]
        return jnp.zeros(1)

    def step(self, state: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        sign = jnp.where(action == 1, 1.0, -1.0)
        if self.number == 3:
            last = state[0] == 1.0
            return jnp.ones(1), jnp.where(last, 1.0, 0.0), last
        reward = {1: jnp.float32(1.0), 2: state[0], 4: sign, 5: state[0] * sign}[self.number]
        return state, reward, jnp.bool_(True)
