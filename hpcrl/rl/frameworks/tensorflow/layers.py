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


def halves(layers: Layers) -> tuple[Layers, Layers]:
    """Return the layers of the two networks of a group, which have equally many."""
    return layers[: len(layers) // 2], layers[len(layers) // 2 :]


def duel(output: Any) -> Any:
    """Return Q (n, actions, ...) of value and advantages (n, 1 + actions, ...): Q = V + A - mean(A)."""
    advantages = output[:, 1:]
    return output[:, :1] + advantages - tf.reduce_mean(advantages, axis=1, keepdims=True)


def mean_layers(layers: Layers, noisy: bool) -> Layers:
    """Return the layers without the scales of their noise: all but the first may have some."""
    if not noisy:
        return layers
    return [*layers[:2], *[array for start in range(2, len(layers), 4) for array in layers[start : start + 2]]]


def noisy_layers(layers: Layers, noise: Any, noisy: bool) -> Layers:
    """Return the layers with a noise vector: f(eps_in), f(eps_out) of each noisy layer in turn."""
    if not noisy:
        return layers
    changed, begin = layers[:2], 0
    for start in range(2, len(layers), 4):
        weight, bias, weight_scale, bias_scale = layers[start : start + 4]
        inputs, outputs = weight.shape
        given, returned = noise[begin : begin + inputs], noise[begin + inputs : begin + inputs + outputs]
        changed = [*changed, weight + weight_scale * (given[:, None] * returned), bias + bias_scale * returned]
        begin += inputs + outputs
    return changed


def framework_weights(network: Network, seed: int) -> Weights:
    """Draw initial weights as keras.layers.Dense does: Glorot uniform kernels, zero biases."""
    weights: Weights = {}
    sizes = zip(network.sizes, network.sizes[1:], strict=False)
    for layer, ((weight, bias), (inputs, outputs)) in enumerate(zip(layer_names(network), sizes, strict=True)):
        kernel = tf.keras.initializers.GlorotUniform(seed=seed + layer)((inputs, outputs))
        weights[weight] = np.asarray(kernel).T.copy()
        weights[bias] = np.zeros(outputs, np.float32)
    return weights
