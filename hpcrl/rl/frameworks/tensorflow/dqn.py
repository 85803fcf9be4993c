"""DQN's loss in TensorFlow; the formulae are those of hpcrl.rl.specification.dqn."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hpcrl.rl.frameworks.tensorflow.layers import Layers, duel, forward


def q_values(online: Layers, observations: Any, settings: Any) -> Any:
    """Return Q (n, actions)."""
    output = forward(online, observations)
    return duel(output) if settings.dueling else output


def greedy(observations: Any, settings: Any, online: Layers) -> Any:
    """Return the greedy actions (n,)."""
    return tf.argmax(q_values(online, observations, settings), axis=1)


def loss(online: Layers, batch: Any, settings: Any, target: Layers) -> Any:
    """Return the mean Huber or squared error of Q(s, a) against r + gamma (1 - terminated) max_a' Q_target(s', a')."""
    observations, actions, rewards, following, terminated = batch
    values = q_values(target, following, settings)
    if settings.double:
        best = tf.gather(values, tf.argmax(q_values(online, following, settings), axis=1), batch_dims=1)
    else:
        best = tf.reduce_max(values, axis=1)
    wanted = tf.stop_gradient(rewards + settings.gamma * (1 - terminated) * best)
    errors = tf.gather(q_values(online, observations, settings), actions, batch_dims=1) - wanted
    if settings.loss == "huber":
        size = tf.abs(errors)
        return tf.reduce_mean(tf.where(size <= 1, errors * errors / 2, size - 0.5))
    return tf.reduce_mean(errors * errors)
