"""MountainCar as pure JAX functions: the dynamics of Gymnasium's MountainCar-v0, in float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from hpcrl.rl.envs.jax.world import World

_FORCE, _GRAVITY = 0.001, 0.0025
_LEFT, _RIGHT, _GOAL, _FASTEST = -1.2, 0.6, 0.5, 0.07


def reset(key: jax.Array) -> jax.Array:
    """Return a first state (2,): a place near the bottom of the valley, and no speed."""
    return jnp.array([jax.random.uniform(key, (), minval=-0.6, maxval=-0.4), 0.0])


def step(state: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the next state, the reward, and whether the car is at the flag. The left wall stops it."""
    place, speed = state
    speed = jnp.clip(speed + (action - 1) * _FORCE - jnp.cos(3 * place) * _GRAVITY, -_FASTEST, _FASTEST)
    place = jnp.clip(place + speed, _LEFT, _RIGHT)
    speed = jnp.where((place == jnp.float32(_LEFT)) & (speed < 0), 0.0, speed)
    return jnp.array([place, speed]), jnp.float32(-1.0), place >= _GOAL


WORLDS = {"MountainCar-v0": World(2, 3, reset, step)}
