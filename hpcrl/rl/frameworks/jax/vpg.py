"""VPG's sampling and losses in JAX; the formulae are those of hpcrl.rl.specification.vpg."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from hpcrl.rl.frameworks.jax.layers import Layers, best_actions, chosen, forward
from hpcrl.rl.layers import with_log_std
from hpcrl.rl.specification.vpg import HALF_LOG_TWO_PI

Arrays = tuple[jax.Array, ...]


def greedy(observations: jax.Array, settings: Any, actor: Layers) -> jax.Array:
    """Return the most probable actions: (n,), or the means (n, actions)."""
    network, log_std = with_log_std(actor)
    outputs = forward(network, observations, settings.activation)
    return outputs if log_std is not None else best_actions(outputs)


def sample(observations: jax.Array, noise: jax.Array, settings: Any, actor: Layers, critic: Layers) -> Arrays:
    """Return actions, their log-probabilities (n,) and values (n,); `noise` (n, actions) is standard Gumbel or normal."""
    network, log_std = with_log_std(actor)
    outputs, values = (
        forward(network, observations, settings.activation),
        forward(critic, observations, settings.activation)[:, 0],
    )
    if log_std is not None:
        return outputs + jnp.exp(log_std) * noise, _gaussian_logs(noise, log_std), values
    actions = best_actions(outputs + noise)
    return actions, _chosen(outputs, actions), values


def policy_loss(actor: Layers, batch: Any, settings: Any) -> jax.Array:
    """Return minus the mean of log-probability times advantage."""
    observations, actions, advantages, _ = batch
    network, log_std = with_log_std(actor)
    outputs = forward(network, observations, settings.activation)
    if log_std is not None:
        logs = _gaussian_logs((actions - outputs) / jnp.exp(log_std), log_std)
    else:
        logs = _chosen(outputs, actions)
    return -(logs * advantages).mean()


def value_loss(critic: Layers, batch: Any, settings: Any) -> jax.Array:
    """Return the mean squared error of values."""
    observations, _, _, returns = batch
    return ((forward(critic, observations, settings.activation)[:, 0] - returns) ** 2).mean()


def _gaussian_logs(standardised: jax.Array, log_std: jax.Array) -> jax.Array:
    return (-0.5 * standardised**2 - log_std - HALF_LOG_TWO_PI).sum(1)


def _chosen(logits: jax.Array, actions: jax.Array) -> jax.Array:
    return chosen(jax.nn.log_softmax(logits), actions)
