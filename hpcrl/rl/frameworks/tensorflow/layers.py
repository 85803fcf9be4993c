"""TensorFlow's part of networks: variables of a group and the perceptron that they make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from hpcrl.rl.interfaces import Network, Weights
from hpcrl.rl.weights import layer_names

# Kernel (in, out) and bias (out,) of each layer in turn.
Layers = list[Any]


def variables(weights: Weights, trainable: bool) -> Layers:
    """Return variables with these values."""
    return [tf.Variable(array.T.astype(np.float32), trainable=trainable) for array in weights.values()]


def mlp(layers: Layers, observations: Any, activation: Callable[[Any], Any] = tf.nn.relu) -> Any:
    """Return the outputs (n, outputs) of the last layer, with the activation between layers."""
    x = observations
    for layer in range(0, len(layers), 2):
        x = tf.matmul(x, layers[layer]) + layers[layer + 1]
        if layer < len(layers) - 2:
            x = activation(x)
    return x


def duel(output: Any) -> Any:
    """Return Q (n, actions, ...) of value and advantages (n, 1 + actions, ...): Q = V + A - mean(A)."""
    advantages = output[:, 1:]
    return output[:, :1] + advantages - tf.reduce_mean(advantages, axis=1, keepdims=True)


def framework_weights(network: Network, seed: int) -> Weights:
    """Draw initial weights as keras.layers.Dense does: Glorot uniform kernels, zero biases."""
    weights: Weights = {}
    sizes = zip(network.sizes, network.sizes[1:], strict=False)
    for layer, ((weight, bias), (inputs, outputs)) in enumerate(zip(layer_names(network), sizes, strict=True)):
        kernel = tf.keras.initializers.GlorotUniform(seed=seed + layer)((inputs, outputs))
        weights[weight] = np.asarray(kernel).T.copy()
        weights[bias] = np.zeros(outputs, np.float32)
    return weights
