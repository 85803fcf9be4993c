"""Environments in JAX: one compiled call steps all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from hpcrl.rl.envs.jax.registry import world_of
from hpcrl.rl.interfaces import Actions, Transitions


class _State(NamedTuple):
    """Of n environments: random keys, observations (n, inputs) and the lengths of the episodes (n,)."""

    keys: jax.Array
    observations: jax.Array
    lengths: jax.Array


class CompiledEnvironments:
    """The dynamics of a Gymnasium environment that JAX has, too. Each environment has its own random key."""

    def __init__(self, environment: Any, count: int) -> None:
        self.count = count
        world, limit = world_of(environment)

        def start(key: jax.Array) -> tuple[jax.Array, jax.Array]:
            key, own = jax.random.split(key)
            return key, world.reset(own)

        def step(state: _State, action: jax.Array) -> tuple[_State, tuple[jax.Array, ...]]:
            last, reward, terminated = world.step(state.observations, action)
            length = state.lengths + 1
            ended = terminated | (length >= limit)
            key, first = start(state.keys)
            observation = jnp.where(ended, first, last)
            following = _State(jnp.where(ended, key, state.keys), observation, jnp.where(ended, 0, length))
            return following, (observation, reward, terminated, ended, last)

        self._start, self._step = jax.jit(jax.vmap(start)), jax.jit(jax.vmap(step), donate_argnums=0)
        self.reset([0] * count)
        self.step(np.zeros(count, np.int64))  # compiled here, not in the training

    def reset(self, seeds: Sequence[int]) -> NDArray[np.float32]:
        keys = jnp.stack([jax.random.key_data(jax.random.key(seed)) for seed in seeds])
        keys, observations = self._start(jax.vmap(jax.random.wrap_key_data)(keys))
        self._state = _State(keys, observations, jnp.zeros(self.count, jnp.int32))
        return np.array(observations)

    def step(self, actions: Actions) -> Transitions:
        self._state, parts = self._step(self._state, actions)
        return Transitions(*(np.asarray(part) for part in parts))

    def close(self) -> None:
        """Do nothing: there are no processes."""


def make(make_environment: Callable[[], Any], count: int) -> CompiledEnvironments:
    """Return `count` environments.

    Raises:
        UsageError: JAX has no such environment.
    """
    return CompiledEnvironments(make_environment(), count)
