"""PPO's sampling and loss in TensorFlow; the formulae are those of hpcrl.rl.specification.ppo."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hpcrl.rl.frameworks.tensorflow.layers import Layers, forward
from hpcrl.rl.layers import halves


def greedy(observations: Any, settings: Any, both: Layers) -> Any:
    """Return the most probable actions (n,)."""
    return tf.argmax(forward(halves(both)[0], observations, "tanh"), axis=1)


def sample(observations: Any, noise: Any, settings: Any, both: Layers) -> tuple[Any, ...]:
    """Return actions (n,), their log-probabilities (n,) and values (n,); `noise` (n, actions) is standard Gumbel."""
    actor, critic = halves(both)
    logits = forward(actor, observations, "tanh")
    actions = tf.argmax(logits + noise, axis=1)
    logs = tf.gather(tf.nn.log_softmax(logits), actions, batch_dims=1)
    return actions, logs, forward(critic, observations, "tanh")[:, 0]


def loss(both: Layers, batch: Any, settings: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the clipped policy loss, plus the weighted value loss, minus the weighted entropy; and the KL divergence."""
    observations, actions, old_logs, advantages, returns, old_values, clip = batch
    actor, critic = halves(both)
    logs = tf.nn.log_softmax(forward(actor, observations, "tanh"))
    difference = tf.gather(logs, actions, batch_dims=1) - old_logs
    ratio = tf.exp(difference)
    clipped = tf.clip_by_value(ratio, 1 - clip, 1 + clip)
    policy = tf.reduce_mean(tf.maximum(-advantages * ratio, -advantages * clipped))
    entropy = -tf.reduce_mean(tf.reduce_sum(tf.exp(logs) * logs, axis=1))
    values = forward(critic, observations, "tanh")[:, 0]
    errors = (values - returns) ** 2
    if settings.clip_values:
        near = old_values + tf.clip_by_value(values - old_values, -clip, clip)
        errors = tf.maximum(errors, (near - returns) ** 2)
    kl = tf.reduce_mean(ratio - 1 - difference)
    return policy + settings.value_weight * tf.reduce_mean(errors) - settings.entropy_weight * entropy, (kl,)
