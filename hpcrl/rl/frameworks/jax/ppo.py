"""PPO's sampling and loss in JAX; the formulae are those of hpcrl.rl.specification.ppo."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from hpcrl.rl.frameworks.jax.layers import Layers, best_actions, chosen, forward
from hpcrl.rl.layers import halves

Arrays = tuple[jax.Array, ...]


def greedy(observations: jax.Array, settings: Any, both: Layers) -> jax.Array:
    """Return the most probable actions (n,)."""
    return best_actions(forward(halves(both)[0], observations, "tanh"))


def sample(observations: jax.Array, noise: jax.Array, settings: Any, both: Layers) -> Arrays:
    """Return actions (n,), their log-probabilities (n,) and values (n,); `noise` (n, actions) is standard Gumbel."""
    actor, critic = halves(both)
    logits = forward(actor, observations, "tanh")
    actions = best_actions(logits + noise)
    logs = chosen(jax.nn.log_softmax(logits), actions)
    return actions, logs, forward(critic, observations, "tanh")[:, 0]


def loss(both: Layers, batch: Any, settings: Any) -> tuple[jax.Array, Arrays]:
    """Return the clipped policy loss, plus the weighted value loss, minus the weighted entropy; and the KL divergence."""
    observations, actions, old_logs, advantages, returns, old_values, clip = batch
    actor, critic = halves(both)
    logs = jax.nn.log_softmax(forward(actor, observations, "tanh"))
    difference = chosen(logs, actions) - old_logs
    ratio = jnp.exp(difference)
    policy = jnp.maximum(-advantages * ratio, -advantages * jnp.clip(ratio, 1 - clip, 1 + clip)).mean()
    entropy = -(jnp.exp(logs) * logs).sum(1).mean()
    values = forward(critic, observations, "tanh")[:, 0]
    errors = (values - returns) ** 2
    if settings.clip_values:
        near = old_values + jnp.clip(values - old_values, -clip, clip)
        errors = jnp.maximum(errors, (near - returns) ** 2)
    kl = (ratio - 1 - difference).mean()
    return policy + settings.value_weight * errors.mean() - settings.entropy_weight * entropy, (kl,)
