"""TD3's policy and losses in JAX; the formulae are those of hpcrl.rl.specification.td3."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from hpcrl.rl.frameworks.jax.layers import Layers, forward
from hpcrl.rl.layers import halves


def greedy(observations: jax.Array, settings: Any, actor: Layers) -> jax.Array:
    """Return the policy's actions (n, actions), from -1 to 1."""
    return jnp.tanh(forward(actor, observations, settings.activation))


def critic_loss(critics: Layers, batch: Any, settings: Any, target_actor: Layers, target_critics: Layers) -> jax.Array:
    """Return the sum of both critics' mean squared errors."""
    observations, actions, rewards, following, terminated, noise = batch
    smoothing = jnp.clip(settings.target_noise * noise, -settings.noise_clip, settings.noise_clip)
    taken = jnp.clip(greedy(following, settings, target_actor) + smoothing, -1, 1)
    values = [_q(critic, following, taken, settings) for critic in halves(target_critics)]
    wanted = rewards + settings.gamma * (1 - terminated) * jnp.minimum(*values)
    first, second = (_q(critic, observations, actions, settings) for critic in halves(critics))
    return ((first - wanted) ** 2).mean() + ((second - wanted) ** 2).mean()


def actor_loss(actor: Layers, batch: Any, settings: Any, critics: Layers) -> jax.Array:
    """Return minus the mean of the first critic's Q of the policy's actions."""
    observations, *_ = batch
    return -_q(halves(critics)[0], observations, greedy(observations, settings, actor), settings).mean()


def _q(critic: Layers, observations: jax.Array, actions: jax.Array, settings: Any) -> jax.Array:
    """Return Q (n,)."""
    given = jnp.concatenate((observations, actions), 1)
    return forward(critic, given, settings.activation)[:, 0]
