"""JAX's part of networks: flat weights, their layers, and the Flax module that they make."""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from hpcrl.rl.interfaces import Network, Weights
from hpcrl.rl.weights import layer_names, pack, unpack

# Kernel (in, out) and bias (out,) of each layer in turn.
Layers = list[jax.Array]


class Layout:
    """The names and shapes of a group's weights in its flat vector: each call passes fewer buffers, and eager mode needs few operations."""

    def __init__(self, like: Weights) -> None:
        self._like = like
        self._shapes = [array.shape[::-1] for array in like.values()]
        self._cuts = [int(cut) for cut in np.cumsum([array.size for array in like.values()])[:-1]]

    def layers(self, vector: jax.Array) -> Layers:
        """Return a vector's layers."""
        return [part.reshape(shape) for part, shape in zip(jnp.split(vector, self._cuts), self._shapes, strict=True)]

    def vector(self, weights: Weights) -> jax.Array:
        """Return weights by name as a vector."""
        return jnp.asarray(pack({name: weights[name] for name in self._like}, transposed=True))

    def weights(self, vector: jax.Array) -> Weights:
        """Return a vector's weights by name, after one transfer of the whole vector."""
        return unpack(np.asarray(vector), self._like, transposed=True)


class Perceptron(nn.Module):
    """Dense layers with an activation between them."""

    sizes: tuple[int, ...]
    activation: Callable[[jax.Array], jax.Array] = nn.relu

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for layer, size in enumerate(self.sizes):
            x = nn.Dense(size, name=str(layer))(x)
            if layer < len(self.sizes) - 1:
                x = self.activation(x)
        return x


def mlp(layers: Layers, observations: jax.Array, activation: Callable[[jax.Array], jax.Array] = nn.relu) -> jax.Array:
    """Return the outputs (n, outputs) of the last layer, with the activation between layers."""
    pairs = list(zip(layers[::2], layers[1::2], strict=True))
    parameters = {str(number): {"kernel": kernel, "bias": bias} for number, (kernel, bias) in enumerate(pairs)}
    network = Perceptron(tuple(bias.size for _, bias in pairs), activation)
    outputs: jax.Array = network.apply({"params": parameters}, observations)
    return outputs


def duel(output: jax.Array) -> jax.Array:
    """Return Q (n, actions, ...) of value and advantages (n, 1 + actions, ...): Q = V + A - mean(A)."""
    advantages = output[:, 1:]
    return output[:, :1] + advantages - advantages.mean(1, keepdims=True)


def framework_weights(network: Network, seed: int) -> Weights:
    """Draw initial weights as flax.linen.Dense does: LeCun normal kernels, zero biases."""
    parameters = Perceptron(network.sizes[1:]).init(jax.random.key(seed), jnp.zeros((1, network.inputs)))["params"]
    weights: Weights = {}
    for number, (weight, bias) in enumerate(layer_names(network)):
        weights[weight] = np.asarray(parameters[str(number)]["kernel"]).T.copy()
        weights[bias] = np.asarray(parameters[str(number)]["bias"]).copy()
    return weights
