"""Rainbow's loss in TensorFlow; the formulae are those of hpcrl.rl.specification.rainbow."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hpcrl.rl.frameworks.tensorflow.layers import Layers, duel, forward
from hpcrl.rl.layers import mean_layers, noisy_layers


def _logs(layers: Layers, observations: Any, settings: Any) -> Any:
    """Return the logarithms of the distributions (n, actions, atoms)."""
    output = forward(layers, observations)
    logits = tf.reshape(output, (-1, output.shape[1] // settings.atoms, settings.atoms))
    return tf.nn.log_softmax(duel(logits) if settings.dueling else logits)


def _atoms(settings: Any) -> tuple[Any, Any, float]:
    """Return the atoms' numbers, their values (atoms,), and their distance."""
    numbers = tf.range(settings.atoms, dtype=tf.float32)
    distance = (settings.value_maximum - settings.value_minimum) / (settings.atoms - 1)
    return numbers, settings.value_minimum + numbers * distance, distance


def q_values(layers: Layers, observations: Any, settings: Any) -> Any:
    """Return Q (n, actions)."""
    if settings.distributional:
        return tf.linalg.matvec(tf.exp(_logs(layers, observations, settings)), _atoms(settings)[1])
    output = forward(layers, observations)
    return duel(output) if settings.dueling else output


def greedy(observations: Any, settings: Any, online: Layers) -> Any:
    """Return the greedy actions (n,), without noise."""
    return tf.argmax(q_values(mean_layers(online, settings.noisy), observations, settings), axis=1)


def sample(observations: Any, noise: Any, settings: Any, online: Layers) -> tuple[Any, ...]:
    """Return the greedy actions (n,) of the network with a noise vector, as a tuple of one."""
    return (
        tf.argmax(
            q_values(noisy_layers(online, noise, settings.noisy, inputs_first=True), observations, settings), axis=1
        ),
    )


def project(probabilities: Any, returns: Any, discounts: Any, settings: Any) -> tuple[Any, Any]:
    """Return the distributions (n, atoms) of returns + discounts Z, and the mass (n,) that lay outside of the support."""
    numbers, values, distance = _atoms(settings)
    places = (returns[:, None] + discounts[:, None] * values - settings.value_minimum) / distance
    inside = tf.clip_by_value(places, 0.0, settings.atoms - 1.0)
    near = tf.clip_by_value(1 - tf.abs(inside[:, None, :] - numbers[:, None]), 0.0, 1.0)
    outside = tf.reduce_sum(probabilities * tf.cast(places != inside, tf.float32), axis=1)
    return tf.reduce_sum(near * probabilities[:, None, :], axis=2), outside


def loss(online: Layers, batch: Any, settings: Any, target: Layers) -> tuple[Any, tuple[Any, ...]]:
    """Return the weighted mean cross-entropy (or Huber loss); and each transition's loss and mass outside."""
    observations, actions, returns, following, discounts, importance, noise, target_noise = batch
    own, other = (
        noisy_layers(online, noise, settings.noisy, inputs_first=True),
        noisy_layers(target, target_noise, settings.noisy, inputs_first=True),
    )
    best = tf.argmax(q_values(own if settings.double else other, following, settings), axis=1)
    if settings.distributional:
        future = tf.exp(tf.gather(_logs(other, following, settings), best, batch_dims=1))
        wanted, outside = project(future, returns, discounts, settings)
        chosen = tf.gather(_logs(own, observations, settings), actions, batch_dims=1)
        losses = -tf.reduce_sum(tf.stop_gradient(wanted) * chosen, axis=1)
    else:
        wanted = returns + discounts * tf.gather(q_values(other, following, settings), best, batch_dims=1)
        outside = tf.zeros_like(returns)
        chosen = tf.gather(q_values(own, observations, settings), actions, batch_dims=1)
        size = tf.abs(chosen - tf.stop_gradient(wanted))
        losses = tf.where(size <= 1, size * size / 2, size - 0.5)
    return tf.reduce_mean(importance * losses), (losses, outside)
