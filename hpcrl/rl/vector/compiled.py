"""Environments in JAX: one compiled call steps all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from hpcrl.catalogue.actions import kind_of_actions
from hpcrl.rl.envs.jax.registry import world_of
from hpcrl.rl.interfaces import Actions, Transitions


class State(NamedTuple):
    """Of n environments: random keys, observations (n, inputs) and the lengths of the episodes (n,)."""

    keys: jax.Array
    observations: jax.Array
    lengths: jax.Array


class PureEnvironments:
    """The dynamics of a Gymnasium environment that JAX has, too, for many environments as pure functions.

    Raises:
        UsageError: JAX has no such environment.
    """

    def __init__(self, environment: Any) -> None:
        self._world, self._limit = world_of(environment)
        self._starts = jax.jit(jax.vmap(self._start))

    def reset(self, seeds: Sequence[int]) -> State:
        """Start an episode in an environment for each seed. Each environment has its own random key."""
        keys = jnp.stack([jax.random.key_data(jax.random.key(seed)) for seed in seeds])
        keys, observations = self._starts(jax.vmap(jax.random.wrap_key_data)(keys))
        return State(keys, observations, jnp.zeros(len(seeds), jnp.int32))

    def step(self, state: State, actions: jax.Array) -> tuple[State, Transitions]:
        """Take a step in each environment; one whose episode ends is reset."""
        last, rewards, terminated = jax.vmap(self._world.step)(state.observations, actions)
        lengths = state.lengths + 1
        ended = terminated | (lengths >= self._limit)
        # Starts cost more than steps: they are drawn only where an episode ended.
        state = jax.lax.cond(ended.any(), self._restarted, lambda state, ended: state, State(state.keys, last, lengths), ended)  # fmt: skip
        return state, Transitions(state.observations, rewards, terminated, ended, last)

    def _start(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        key, own = jax.random.split(key)
        return key, self._world.reset(own)

    def _restarted(self, state: State, ended: jax.Array) -> State:
        keys, first = jax.vmap(self._start)(state.keys)
        observations = jnp.where(ended[:, None], first, state.observations)
        return State(jnp.where(ended, keys, state.keys), observations, jnp.where(ended, 0, state.lengths))


class CompiledEnvironments:
    """Environments that Python steps, all of them by one compiled call."""

    def __init__(self, environment: Any, count: int) -> None:
        self.count = count
        pure = PureEnvironments(environment)
        self._reset, self._step = pure.reset, jax.jit(pure.step, donate_argnums=0)
        self.reset([0] * count)
        space = environment.action_space
        continuous = kind_of_actions(space) == "continuous"
        self.step(np.zeros((count, *space.shape), np.float32) if continuous else np.zeros(count, np.int64))
        # So it is compiled here, not in the training.

    def reset(self, seeds: Sequence[int]) -> NDArray[np.float32]:
        self._state = self._reset(seeds)
        return np.array(self._state.observations)

    def step(self, actions: Actions) -> Transitions:
        self._state, transitions = self._step(self._state, actions)
        return Transitions(*(np.asarray(part) for part in transitions))

    def close(self) -> None:
        """Do nothing: there are no processes."""


def make(make_environment: Callable[[], Any], count: int) -> CompiledEnvironments:
    """Return `count` environments.

    Raises:
        UsageError: JAX has no such environment.
    """
    return CompiledEnvironments(make_environment(), count)
