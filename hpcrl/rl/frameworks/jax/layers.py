"""JAX's part of networks: flat weights, their layers, and the Flax module that they make."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from hpcrl.catalogue.images import STRIDES, side_of
from hpcrl.rl.interfaces import Network, Weights
from hpcrl.rl.weights import inputs_first, layer_names, outputs_first, pack, unpack

# Kernel (in, out), or (kernel, kernel, in, out) of a convolution, and bias (out,) of each layer in turn.
Layers = list[jax.Array]
MANY_ACTIONS = 32  # for which comparisons, one after the other, take long to compile
# Between two layers.
_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {"relu": nn.relu, "tanh": jnp.tanh}


class Layout:
    """The names and shapes of a group's weights in its flat vector: each call passes fewer buffers, and eager mode needs few operations.

    With `transposed` the vector has weights as (in, out), as layers are: eager mode then needs no transposition. Else it has them as
    (out, in): a compiled program fuses the transposition, and on the CPU its product with one observation takes half the time.
    """

    def __init__(self, like: Weights, transposed: bool) -> None:
        self._like, self._transposed = like, transposed
        self._shapes = [(inputs_first(array) if transposed else array).shape for array in like.values()]
        self._cuts = [int(cut) for cut in np.cumsum([array.size for array in like.values()])[:-1]]

    def layers(self, vector: jax.Array) -> Layers:
        """Return a vector's layers."""
        parts = [part.reshape(shape) for part, shape in zip(jnp.split(vector, self._cuts), self._shapes, strict=True)]
        return parts if self._transposed else [inputs_first(part) for part in parts]

    def vector(self, weights: Weights) -> jax.Array:
        """Return weights by name as a vector."""
        return jnp.asarray(pack({name: weights[name] for name in self._like}, self._transposed))

    def weights(self, vector: jax.Array) -> Weights:
        """Return a vector's weights by name, after one transfer of the whole vector."""
        return unpack(np.asarray(vector), self._like, self._transposed)

    def stored(self, array: jax.Array) -> NDArray[Any]:
        """Return a vector as checkpoints have it, the same for every layout: weights (in, out). Other arrays stay as they are."""
        if self._transposed or array.ndim != 1:
            return np.asarray(array)
        return pack(self.weights(array), transposed=True)

    def restored(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return what :meth:`stored` was given."""
        if self._transposed or array.ndim != 1:
            return array
        return pack(unpack(array, self._like, transposed=True))


class Layered(nn.Module):
    """Dense layers with an activation between them.

    With `kernels` the first layers are convolutions, a kernel each, of images with so many `channels`. What they make of these is
    flat in the order of rows, columns and filters for the dense layers.
    """

    sizes: tuple[int, ...]
    activation: Callable[[jax.Array], jax.Array] = nn.relu
    kernels: tuple[int, ...] = ()
    channels: int = 0

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if self.kernels:
            side = side_of(x.shape[1], self.channels)
            x = x.reshape(-1, side, side, self.channels).astype(jnp.float32) / 255
        for layer, kernel in enumerate(self.kernels):
            stride = STRIDES[kernel]
            x = nn.Conv(self.sizes[layer], (kernel, kernel), (stride, stride), "VALID", name=str(layer))(x)
            x = self.activation(x)
        x = x.reshape(len(x), -1) if self.kernels else x
        for layer in range(len(self.kernels), len(self.sizes)):
            x = nn.Dense(self.sizes[layer], name=str(layer))(x)
            if layer < len(self.sizes) - 1:
                x = self.activation(x)
        return x


def forward(layers: Layers, observations: jax.Array, activation: str = "relu") -> jax.Array:
    """Return the outputs (n, outputs) of the last layer, with the activation between layers."""
    pairs = list(zip(layers[::2], layers[1::2], strict=True))
    parameters = {str(number): {"kernel": kernel, "bias": bias} for number, (kernel, bias) in enumerate(pairs)}
    kernels = tuple(kernel.shape[0] for kernel, _ in pairs if kernel.ndim == 4)
    channels = layers[0].shape[2] if kernels else 0
    network = Layered(tuple(bias.size for _, bias in pairs), _ACTIVATIONS[activation], kernels, channels)
    outputs: jax.Array = network.apply({"params": parameters}, observations)
    return outputs


def chosen(values: jax.Array, actions: jax.Array) -> jax.Array:
    """Return the values (n,) of the chosen actions from those of all (n, actions). Compiled loops gather more slowly than they compare."""
    return jnp.where(actions[:, None] == jnp.arange(values.shape[1]), values, 0.0).sum(1)


@partial(jax.jit, inline=True)
def best_actions(values: jax.Array) -> jax.Array:
    """Return the actions (n,) of the greatest values (n, actions), the first of equal ones; where a value is NaN, any.

    Compiled on the CPU, `argmax` takes half as long as a small network.
    """
    if values.shape[1] > MANY_ACTIONS:
        return values.argmax(1)
    greatest, actions = values[:, 0], jnp.zeros(len(values), jnp.int32)
    for action in range(1, values.shape[1]):
        is_greater = values[:, action] > greatest
        greatest, actions = jnp.where(is_greater, values[:, action], greatest), jnp.where(is_greater, action, actions)
    return actions


def duel(output: jax.Array) -> jax.Array:
    """Return Q (n, actions, ...) of value and advantages (n, 1 + actions, ...): Q = V + A - mean(A)."""
    advantages = output[:, 1:]
    return output[:, :1] + advantages - advantages.mean(1, keepdims=True)


def framework_weights(network: Network, seed: int) -> Weights:
    """Draw initial weights as flax.linen.Dense and Conv do: LeCun normal kernels, zero biases."""
    shapes = network.shapes
    sizes, kernels = tuple(shape[0] for shape in shapes), tuple(shape[2] for shape in shapes if len(shape) == 4)
    module = Layered(sizes, kernels=kernels, channels=network.channels)
    parameters = module.init(jax.random.key(seed), jnp.zeros((1, network.inputs)))["params"]
    weights: Weights = {}
    for number, (weight, bias) in enumerate(layer_names(network)):
        weights[weight] = outputs_first(np.asarray(parameters[str(number)]["kernel"])).copy()
        weights[bias] = np.asarray(parameters[str(number)]["bias"]).copy()
    return weights
