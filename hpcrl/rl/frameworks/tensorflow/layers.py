"""TensorFlow's part of networks: variables of a group and the network that they make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from hpcrl.catalogue.images import STRIDES, side_of
from hpcrl.rl.interfaces import Network, Weights
from hpcrl.rl.weights import inputs_first, layer_names, outputs_first

# Kernel (in, out), or (kernel, kernel, in, out) of a convolution, and bias (out,) of each layer in turn.
Layers = list[Any]
# Between two layers.
_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {"relu": tf.nn.relu, "tanh": tf.tanh}


def variables(weights: Weights, trainable: bool) -> Layers:
    """Return variables with these values."""
    return [tf.Variable(inputs_first(array).astype(np.float32), trainable=trainable) for array in weights.values()]


def forward(layers: Layers, observations: Any, activation: str = "relu") -> Any:
    """Return the outputs (n, outputs) of the last layer, with the activation between layers."""
    x, first, between = observations, 0, _ACTIVATIONS[activation]
    if len(layers[0].shape) == 4:
        x, first = _convolved(layers, observations, between)
    for layer in range(first, len(layers), 2):
        x = tf.matmul(x, layers[layer]) + layers[layer + 1]
        if layer < len(layers) - 2:
            x = between(x)
    return x


def _convolved(layers: Layers, observations: Any, activation: Callable[[Any], Any]) -> tuple[Any, int]:
    """Return what the convolutions make of images, flat in the order of rows, columns and filters, and the place of the next layer."""
    channels, place = layers[0].shape[2], 0
    side = side_of(observations.shape[1], channels)
    x = tf.cast(tf.reshape(observations, (-1, side, side, channels)), tf.float32) / 255
    while len(layers[place].shape) == 4:
        kernel, bias = layers[place : place + 2]
        x = activation(tf.nn.conv2d(x, kernel, STRIDES[kernel.shape[0]], "VALID") + bias)
        place += 2
    return tf.reshape(x, (-1, x.shape[1] * x.shape[2] * x.shape[3])), place


def duel(output: Any) -> Any:
    """Return Q (n, actions, ...) of value and advantages (n, 1 + actions, ...): Q = V + A - mean(A)."""
    advantages = output[:, 1:]
    return output[:, :1] + advantages - tf.reduce_mean(advantages, axis=1, keepdims=True)


def framework_weights(network: Network, seed: int) -> Weights:
    """Draw initial weights as keras.layers.Dense and Conv2D do: Glorot uniform kernels, zero biases."""
    weights: Weights = {}
    for layer, ((weight, bias), shape) in enumerate(zip(layer_names(network), network.shapes, strict=True)):
        kernel = tf.keras.initializers.GlorotUniform(seed=seed + layer)((*shape[2:], shape[1], shape[0]))
        weights[weight] = outputs_first(np.asarray(kernel)).copy()
        weights[bias] = np.zeros(shape[0], np.float32)
    return weights
