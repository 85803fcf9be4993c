"""MXNet's part of networks: arrays of a group, the perceptron that they make, and functions of arrays as Gluon blocks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mxnet as mx
from mxnet import gluon

from hpcrl.rl.interfaces import Network, Weights
from hpcrl.rl.weights import layer_names

# A loss need not use every array of its batch.
warnings.filterwarnings("ignore", "The .* input to HybridBlock is not used by any computation")


class Array(NamedTuple):
    """Weight (out, in) or bias (out,), as an array or a symbol, which does not know its shape."""

    value: Any
    shape: tuple[int, ...]


# Weight and bias of each layer in turn.
Layers = list[Array]


def arrays(weights: Weights, context: Any, trainable: bool) -> list[Any]:
    """Return arrays with these values; trainable ones have a gradient."""
    made = [mx.nd.array(array, ctx=context, dtype="float32") for array in weights.values()]
    for array in made if trainable else ():
        array.attach_grad()
    return made


def layers(values: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> Layers:
    """Join values and shapes."""
    return [Array(*pair) for pair in zip(values, shapes, strict=True)]


class Function(gluon.HybridBlock):
    """A function `call(F, *arrays)` as a block: imperative, or one cached graph when hybridized.

    Its arrays are inputs, weights too, so that one function serves every group of weights.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self._call = call

    def hybrid_forward(self, F: Any, first: Any, *rest: Any) -> Any:
        return self._call(F, first, *rest)

    def call(self, *arrays: Any) -> Any:
        """Call the cached graph itself, if there is one: Gluon looks at every argument before, which takes as long as a small network."""
        if self._cached_op is None:
            return self(*arrays)
        return self._cached_op(*[arrays[index] for _, index in self._cached_op_args])


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
