"""MXNet's part of networks: flat weights, their arrays, and the perceptron that they make."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import mxnet as mx
from mxnet import autograd, gluon

from hpcrl.rl.interfaces import Network, Weights
from hpcrl.rl.weights import layer_names, pack, unpack


class Array(NamedTuple):
    """Weight (out, in) or bias (out,), as an array or a symbol, which does not know its shape."""

    value: Any
    shape: tuple[int, ...]


# Weight and bias of each layer in turn.
Layers = list[Array]


class Flat:
    """The weights of a group as one flat vector: optimiser and averaging then need few operations.

    `views` are its arrays. A trainable group has a gradient like it.
    """

    def __init__(self, weights: Weights, context: Any, trainable: bool) -> None:
        self._like = weights
        self.shapes = [array.shape for array in weights.values()]
        self.vector = mx.nd.array(pack(weights), ctx=context, dtype="float32")
        self.views = self.parts(self.vector)
        if trainable:
            self.gradient = mx.nd.zeros_like(self.vector)
            self.gradients = self.parts(self.gradient)
            autograd.mark_variables(self.views, self.gradients)

    def parts(self, vector: Any) -> list[Any]:
        """Return a vector's arrays as views."""
        parts, start = [], 0
        for shape in self.shapes:
            size = math.prod(shape)
            parts.append(vector[start : start + size].reshape(shape))
            start += size
        return parts

    def weights(self) -> Weights:
        """Return copies by name."""
        return unpack(self.vector.asnumpy(), self._like)

    def load(self, weights: Weights) -> None:
        """Set the values in place."""
        self.vector[:] = pack({name: weights[name] for name in self._like})


def layers(values: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> Layers:
    """Join values and shapes."""
    return [Array(*pair) for pair in zip(values, shapes, strict=True)]


def forward(F: Any, network: Layers, observations: Any, activation: str = "relu") -> Any:
    """Return the outputs (n, outputs) of the last layer, with the activation between layers."""
    x = observations
    for layer in range(0, len(network), 2):
        weight, bias = network[layer], network[layer + 1]
        x = F.FullyConnected(x, weight.value, bias.value, num_hidden=weight.shape[0], flatten=False)
        if layer < len(network) - 2:
            x = F.Activation(x, act_type=activation)
    return x


def duel(F: Any, output: Any) -> Any:
    """Return Q (n, actions, ...) of value and advantages (n, 1 + actions, ...): Q = V + A - mean(A)."""
    value = F.slice_axis(output, axis=1, begin=0, end=1)
    advantages = F.slice_axis(output, axis=1, begin=1, end=None)
    return F.broadcast_add(value, F.broadcast_sub(advantages, F.mean(advantages, axis=1, keepdims=True)))


def noisy_layers(F: Any, network: Layers, noise: Any, noisy: bool) -> Layers:
    """Return the layers with a noise vector: f(eps_in), f(eps_out) of each noisy layer in turn."""
    if not noisy:
        return network
    changed, begin = network[:2], 0
    for start in range(2, len(network), 4):
        weight, bias, weight_scale, bias_scale = network[start : start + 4]
        outputs, inputs = weight.shape
        given = F.slice_axis(noise, axis=0, begin=begin, end=begin + inputs)
        returned = F.slice_axis(noise, axis=0, begin=begin + inputs, end=begin + inputs + outputs)
        outer = F.broadcast_mul(F.expand_dims(returned, axis=1), F.expand_dims(given, axis=0))
        changed = [
            *changed,
            Array(weight.value + weight_scale.value * outer, weight.shape),
            Array(bias.value + bias_scale.value * returned, bias.shape),
        ]
        begin += inputs + outputs
    return changed


def framework_weights(network: Network, seed: int) -> Weights:
    """Draw initial weights as Gluon's default initialiser does: Uniform(0.07), zero biases."""
    mx.random.seed(seed)
    weights: Weights = {}
    for (weight, bias), (outputs, inputs) in zip(layer_names(network), network.shapes, strict=True):
        dense = gluon.nn.Dense(outputs, in_units=inputs)
        dense.initialize(mx.init.Uniform())
        weights[weight], weights[bias] = dense.weight.data().asnumpy(), dense.bias.data().asnumpy()
    return weights
