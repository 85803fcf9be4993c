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


class Layer(NamedTuple):
    """Weight (out, in) and bias (out,), as arrays or symbols, which do not know their size."""

    weight: Any
    bias: Any
    outputs: int


Layers = list[Layer]


def arrays(weights: Weights, context: Any) -> list[Any]:
    """Return arrays with these values."""
    return [mx.nd.array(array, ctx=context, dtype="float32") for array in weights.values()]


def layers(values: Sequence[Any], outputs: Sequence[int]) -> Layers:
    """Pair weights and biases."""
    return [Layer(*parts) for parts in zip(values[::2], values[1::2], outputs, strict=True)]


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


def mlp(F: Any, network: Layers, observations: Any, activation: str = "relu") -> Any:
    """Return the outputs (n, outputs) of the last layer, with the activation between layers."""
    x = observations
    for number, layer in enumerate(network):
        x = F.FullyConnected(x, layer.weight, layer.bias, num_hidden=layer.outputs, flatten=False)
        if number < len(network) - 1:
            x = F.Activation(x, act_type=activation)
    return x


def halves(network: Layers) -> tuple[Layers, Layers]:
    """Return the layers of the two networks of a group, which have equally many."""
    return network[: len(network) // 2], network[len(network) // 2 :]


def duel(F: Any, output: Any) -> Any:
    """Return Q (n, actions) of value and advantages (n, 1 + actions): Q = V + A - mean(A)."""
    value = F.slice_axis(output, axis=1, begin=0, end=1)
    advantages = F.slice_axis(output, axis=1, begin=1, end=None)
    return F.broadcast_add(value, F.broadcast_sub(advantages, F.mean(advantages, axis=1, keepdims=True)))


def framework_weights(network: Network, seed: int) -> Weights:
    """Draw initial weights as Gluon's default initialiser does: Uniform(0.07), zero biases."""
    mx.random.seed(seed)
    weights: Weights = {}
    sizes = zip(network.sizes, network.sizes[1:], strict=False)
    for (weight, bias), (inputs, outputs) in zip(layer_names(network), sizes, strict=True):
        dense = gluon.nn.Dense(outputs, in_units=inputs)
        dense.initialize(mx.init.Uniform())
        weights[weight], weights[bias] = dense.weight.data().asnumpy(), dense.bias.data().asnumpy()
    return weights
