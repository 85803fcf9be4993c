"""TD3's policy and losses in TensorFlow; the formulae are those of hpcrl.rl.specification.td3."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hpcrl.rl.frameworks.tensorflow.layers import Layers, forward
from hpcrl.rl.layers import halves


def greedy(observations: Any, settings: Any, actor: Layers) -> Any:
    """Return the policy's actions (n, actions), from -1 to 1."""
    return tf.tanh(forward(actor, observations, settings.activation))


def critic_loss(critics: Layers, batch: Any, settings: Any, target_actor: Layers, target_critics: Layers) -> Any:
    """Return the sum of both critics' mean squared errors."""
    observations, actions, rewards, following, terminated, noise = batch
    smoothing = tf.clip_by_value(settings.target_noise * noise, -settings.noise_clip, settings.noise_clip)
    taken = tf.clip_by_value(greedy(following, settings, target_actor) + smoothing, -1.0, 1.0)
    values = [_q(critic, following, taken, settings) for critic in halves(target_critics)]
    wanted = rewards + settings.gamma * (1 - terminated) * tf.minimum(*values)
    first, second = (_q(critic, observations, actions, settings) for critic in halves(critics))
    return tf.reduce_mean((first - wanted) ** 2) + tf.reduce_mean((second - wanted) ** 2)


def actor_loss(actor: Layers, batch: Any, settings: Any, critics: Layers) -> Any:
    """Return minus the mean of the first critic's Q of the policy's actions."""
    observations, *_ = batch
    return -tf.reduce_mean(_q(halves(critics)[0], observations, greedy(observations, settings, actor), settings))


def _q(critic: Layers, observations: Any, actions: Any, settings: Any) -> Any:
    """Return Q (n,)."""
    return forward(critic, tf.concat((observations, actions), 1), settings.activation)[:, 0]
