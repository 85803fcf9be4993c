"""Schedules inside compiled loops."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def schedule(start: float, end: float, steps: float, step: jax.Array) -> jax.Array:
    """Go from `start` to `end` over `steps` steps, then stay: hpcrl.rl.schedules.linear."""
    return start + (end - start) * jnp.minimum(1.0, step / steps) if steps else jnp.float32(end)
