"""What an environment of pure JAX functions is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax


@dataclass(frozen=True)
class World:
    """An environment with observations (inputs,), which are its states, and actions 0 to actions - 1.

    If the actions of its Gymnasium environment are continuous, an action is a float32 vector (actions,), not clipped to any bounds.
    `reset(key)` returns a state; `step(state, action)` the next state, the reward, and whether the episode ended by itself.
    """

    inputs: int
    actions: int
    reset: Callable[[jax.Array], jax.Array]
    step: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]
