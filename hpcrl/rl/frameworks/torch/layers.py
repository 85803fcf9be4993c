"""PyTorch's part of networks: flat weights, their layers, and the network that they make."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from hpcrl.catalogue.images import STRIDES, side_of
from hpcrl.rl.interfaces import Network, Weights
from hpcrl.rl.weights import layer_names, pack, unpack

# Weight (out, in), or (out, in, kernel, kernel) of a convolution, and bias (out,) of each layer in turn.
Layers = list[torch.Tensor]
# Between two layers.
_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"relu": torch.relu_, "tanh": torch.tanh}


class Flat:
    """The weights of a group as one flat vector: clipping, optimiser and averaging then need few operations.

    `views` are its layers; `leaves` are the same for autograd.
    """

    def __init__(self, weights: Weights, device: torch.device) -> None:
        self._like = weights
        self._shapes = [array.shape for array in weights.values()]
        self._counts = [array.size for array in weights.values()]
        self.vector = torch.from_numpy(pack(weights)).to(device)
        self.views = self.layers(self.vector)
        self.leaves = [view.detach().requires_grad_() for view in self.views]

    def layers(self, vector: torch.Tensor) -> Layers:
        """Return a vector's layers as views."""
        return [part.view(shape) for part, shape in zip(vector.split(self._counts), self._shapes, strict=True)]

    def weights(self) -> Weights:
        """Return copies by name."""
        return unpack(self.vector.detach().cpu().numpy(), self._like)

    def load(self, weights: Weights) -> None:
        """Set the values in place."""
        self.vector.copy_(torch.from_numpy(pack({name: weights[name] for name in self._like})))


def forward(layers: Layers, observations: torch.Tensor, activation: str = "relu") -> torch.Tensor:
    """Return the outputs (n, outputs) of the last layer, with the activation between layers."""
    x, first, between = observations, 0, _ACTIVATIONS[activation]
    if layers[0].ndim == 4:
        x, first = _convolved(layers, observations, between)
    for layer in range(first, len(layers), 2):
        x = torch.nn.functional.linear(x, layers[layer], layers[layer + 1])
        if layer < len(layers) - 2:
            x = between(x)
    return x


def _convolved(
    layers: Layers, observations: torch.Tensor, activation: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[torch.Tensor, int]:
    """Return what the convolutions make of images, flat in the order of rows, columns and filters, and the place of the next layer."""
    channels, place = layers[0].shape[1], 0
    side = side_of(observations.shape[1], channels)
    x = observations.reshape(-1, side, side, channels).permute(0, 3, 1, 2) / 255
    while layers[place].ndim == 4:
        weight, bias = layers[place : place + 2]
        x = activation(torch.nn.functional.conv2d(x, weight, bias, STRIDES[weight.shape[-1]]))
        place += 2
    return x.permute(0, 2, 3, 1).flatten(1), place


def duel(output: torch.Tensor) -> torch.Tensor:
    """Return Q (n, actions, ...) of value and advantages (n, 1 + actions, ...): Q = V + A - mean(A)."""
    advantages = output[:, 1:]
    return output[:, :1] + advantages - advantages.mean(1, keepdim=True)


def framework_weights(network: Network, seed: int) -> Weights:
    """Draw initial weights as torch.nn.Linear and torch.nn.Conv2d do."""
    torch.manual_seed(seed)
    weights: Weights = {}
    for (weight, bias), (outputs, inputs, *kernels) in zip(layer_names(network), network.shapes, strict=True):
        layer = torch.nn.Conv2d(inputs, outputs, kernels[0]) if kernels else torch.nn.Linear(inputs, outputs)
        weights[weight] = np.array(layer.weight.detach())
        weights[bias] = np.array(layer.bias.detach())
    return weights
