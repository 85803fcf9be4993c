"""Rainbow's loss in JAX; the formulae are those of hpcrl.rl.specification.rainbow."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from hpcrl.rl.frameworks.jax.layers import Layers, best_actions, duel, forward
from hpcrl.rl.layers import mean_layers, noisy_layers

Arrays = tuple[jax.Array, ...]


def _logs(layers: Layers, observations: jax.Array, settings: Any) -> jax.Array:
    """Return the logarithms of the distributions (n, actions, atoms)."""
    logits = forward(layers, observations).reshape(len(observations), -1, settings.atoms)
    return jax.nn.log_softmax(duel(logits) if settings.dueling else logits)


def _atoms(settings: Any) -> tuple[jax.Array, jax.Array, float]:
    """Return the atoms' numbers, their values (atoms,), and their distance."""
    numbers = jnp.arange(settings.atoms, dtype=jnp.float32)
    distance = (settings.value_maximum - settings.value_minimum) / (settings.atoms - 1)
    return numbers, settings.value_minimum + numbers * distance, distance


def q_values(layers: Layers, observations: jax.Array, settings: Any) -> jax.Array:
    """Return Q (n, actions)."""
    if settings.distributional:
        return jnp.exp(_logs(layers, observations, settings)) @ _atoms(settings)[1]
    output = forward(layers, observations)
    return duel(output) if settings.dueling else output


def greedy(observations: jax.Array, settings: Any, online: Layers) -> jax.Array:
    """Return the greedy actions (n,), without noise."""
    return best_actions(q_values(mean_layers(online, settings.noisy), observations, settings))


def sample(observations: jax.Array, noise: jax.Array, settings: Any, online: Layers) -> Arrays:
    """Return the greedy actions (n,) of the network with a noise vector, as a tuple of one."""
    layers = noisy_layers(online, noise, settings.noisy, inputs_first=True)
    return (best_actions(q_values(layers, observations, settings)),)


def project(probabilities: jax.Array, returns: jax.Array, discounts: jax.Array, settings: Any) -> Arrays:
    """Return the distributions (n, atoms) of returns + discounts Z, and the mass (n,) that lay outside of the support."""
    numbers, values, distance = _atoms(settings)
    places = (returns[:, None] + discounts[:, None] * values - settings.value_minimum) / distance
    inside = jnp.clip(places, 0, settings.atoms - 1)
    near = jnp.clip(1 - jnp.abs(inside[:, None, :] - numbers[:, None]), 0, 1)
    return (near * probabilities[:, None, :]).sum(2), (probabilities * (places != inside)).sum(1)


def loss(online: Layers, batch: Any, settings: Any, target: Layers) -> tuple[jax.Array, Arrays]:
    """Return the weighted mean cross-entropy (or Huber loss); and each transition's loss and mass outside."""
    observations, actions, returns, following, discounts, importance, noise, target_noise = batch
    own, other = (
        noisy_layers(online, noise, settings.noisy, inputs_first=True),
        noisy_layers(target, target_noise, settings.noisy, inputs_first=True),
    )
    best = best_actions(q_values(own if settings.double else other, following, settings))
    if settings.distributional:
        future = jnp.exp(_chosen(_logs(other, following, settings), best))
        wanted, outside = jax.lax.stop_gradient(project(future, returns, discounts, settings))
        losses = -(wanted * _chosen(_logs(own, observations, settings), actions)).sum(1)
    else:
        wanted = jax.lax.stop_gradient(returns + discounts * _chosen(q_values(other, following, settings), best))
        outside = jnp.zeros_like(wanted)
        losses = optax.huber_loss(_chosen(q_values(own, observations, settings), actions) - wanted)
    return (importance * losses).mean(), (losses, outside)


def _chosen(values: jax.Array, actions: jax.Array) -> jax.Array:
    """Return the values (n, ...) of one action of each row of (n, actions, ...)."""
    return jnp.take_along_axis(values, actions.reshape(-1, *[1] * (values.ndim - 1)), 1)[:, 0]
