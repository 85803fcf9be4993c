"""CartPole as pure JAX functions: the equations of Barto, Sutton & Anderson 1983 as Gymnasium's CartPole integrates them.

Gymnasium computes in float64 and returns float32; here everything is float32.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from hpcrl.rl.envs.jax.world import World

_GRAVITY, _POLE_MASS, _TOTAL_MASS = 9.8, 0.1, 1.1
_HALF_LENGTH, _FORCE, _SECONDS = 0.5, 10.0, 0.02
_MOST_ANGLE, _MOST_PLACE = 12 * 2 * 3.141592653589793 / 360, 2.4


def reset(key: jax.Array) -> jax.Array:
    """Return an initial state (4,): position, velocity, angle, angular velocity, each uniform in +-0.05."""
    return jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)


def step(state: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the next state (4,), the reward (always 1) and whether the pole fell or the cart left the track."""
    place, speed, angle, turning = state
    force = jnp.where(action == 1, _FORCE, -_FORCE)
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    inner = (force + _POLE_MASS * _HALF_LENGTH * turning**2 * sine) / _TOTAL_MASS
    angular = (_GRAVITY * sine - cosine * inner) / (_HALF_LENGTH * (4.0 / 3.0 - _POLE_MASS * cosine**2 / _TOTAL_MASS))
    linear = inner - _POLE_MASS * _HALF_LENGTH * angular * cosine / _TOTAL_MASS
    following = jnp.array(
        [
            place + _SECONDS * speed,
            speed + _SECONDS * linear,
            angle + _SECONDS * turning,
            turning + _SECONDS * angular,
        ]
    )
    over = (jnp.abs(following[0]) > _MOST_PLACE) | (jnp.abs(following[2]) > _MOST_ANGLE)
    return following, jnp.float32(1.0), over


WORLDS = dict.fromkeys(("CartPole-v0", "CartPole-v1"), World(4, 2, reset, step))
