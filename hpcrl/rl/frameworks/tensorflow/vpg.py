"""VPG's sampling and losses in TensorFlow; the formulae are those of hpcrl.rl.specification.vpg."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hpcrl.rl.frameworks.tensorflow.layers import Layers, forward
from hpcrl.rl.layers import with_log_std
from hpcrl.rl.specification.vpg import HALF_LOG_TWO_PI


def greedy(observations: Any, settings: Any, actor: Layers) -> Any:
    """Return the most probable actions: (n,), or the means (n, actions)."""
    network, log_std = with_log_std(actor)
    outputs = forward(network, observations, settings.activation)
    return outputs if log_std is not None else tf.argmax(outputs, axis=1)


def sample(observations: Any, noise: Any, settings: Any, actor: Layers, critic: Layers) -> tuple[Any, ...]:
    """Return actions, their log-probabilities (n,) and values (n,); `noise` (n, actions) is standard Gumbel or normal."""
    network, log_std = with_log_std(actor)
    outputs, values = (
        forward(network, observations, settings.activation),
        forward(critic, observations, settings.activation)[:, 0],
    )
    if log_std is not None:
        return outputs + tf.exp(log_std) * noise, _gaussian_logs(noise, log_std), values
    actions = tf.argmax(outputs + noise, axis=1)
    return actions, _chosen(outputs, actions), values


def policy_loss(actor: Layers, batch: Any, settings: Any) -> Any:
    """Return minus the mean of log-probability times advantage."""
    observations, actions, advantages, _ = batch
    network, log_std = with_log_std(actor)
    outputs = forward(network, observations, settings.activation)
    if log_std is not None:
        logs = _gaussian_logs((actions - outputs) / tf.exp(log_std), log_std)
    else:
        logs = _chosen(outputs, actions)
    return -tf.reduce_mean(logs * advantages)


def value_loss(critic: Layers, batch: Any, settings: Any) -> Any:
    """Return the mean squared error of values."""
    observations, _, _, returns = batch
    return tf.reduce_mean((forward(critic, observations, settings.activation)[:, 0] - returns) ** 2)


def _gaussian_logs(standardised: Any, log_std: Any) -> Any:
    return tf.reduce_sum(-0.5 * standardised**2 - log_std - HALF_LOG_TWO_PI, axis=1)


def _chosen(logits: Any, actions: Any) -> Any:
    return tf.gather(tf.nn.log_softmax(logits), actions, batch_dims=1)
