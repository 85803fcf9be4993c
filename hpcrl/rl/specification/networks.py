"""Networks: forward and backward. Layers are weights by hpcrl's names, (out, in) or (out, in, kernel, kernel), and (out,)."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.rl.interfaces import Floats, Observations, Weights
from hpcrl.rl.specification.convolutions import convolve, gradients, image_gradient, scaled


@cache
def _layers(count: int) -> list[tuple[str, str]]:
    """Return the names of the weight and the bias of each layer."""
    return [(f"layers.{layer}.weight", f"layers.{layer}.bias") for layer in range(count)]


def forward(weights: Weights, observations: Observations, activation: str = "relu") -> list[Floats]:
    """Return the input (n, inputs) and the output of every layer, with ReLU or tanh after all but the last.

    A layer whose weight has four dimensions is a convolution. Its output is flat (n, outputs), row by row, each place with all
    its filters; the images that it is given are flat in the same order. If the first layer is one, the input is divided by 255.
    """
    layers = _layers(len(weights) // 2)
    first = weights[layers[0][0]]
    outputs = [scaled(observations, first) if first.ndim == 4 else observations]
    for names in layers:
        weight, bias = weights[names[0]], weights[names[1]]
        linear = outputs[-1] @ weight.T + bias if weight.ndim == 2 else convolve(outputs[-1], weight, bias)
        outputs.append(linear if names is layers[-1] else activate(linear, activation))
    return outputs


def activate(linear: Floats, activation: str) -> Floats:
    """Return ReLU or tanh of a layer's sums."""
    output: Floats = np.tanh(linear) if activation == "tanh" else np.maximum(linear, 0.0)
    return output


def backward(weights: Weights, outputs: list[Floats], delta: Floats, activation: str = "relu") -> Weights:
    """Return the gradients of the weights for the gradient `delta` (n, outputs) of the last output of :func:`forward`."""
    derivatives: Weights = {}
    for layer, names in reversed(list(enumerate(_layers(len(weights) // 2)))):
        weight, given = weights[names[0]], outputs[layer]
        if weight.ndim == 2:
            derivatives[names[0]], derivatives[names[1]] = delta.T @ given, delta.sum(axis=0)
        else:
            derivatives[names[0]], derivatives[names[1]] = gradients(given, weight, delta)
        if layer:
            before = delta @ weight if weight.ndim == 2 else image_gradient(given, weight, delta)
            delta = before * _slope(given, activation)
    return derivatives


def input_gradient(weights: Weights, outputs: list[Floats], delta: Floats, activation: str = "relu") -> Floats:
    """Return the gradient (n, inputs) of the first layer's input; the layers are no convolutions."""
    for layer, names in reversed(list(enumerate(_layers(len(weights) // 2)))):
        delta = delta @ weights[names[0]]
        if layer:
            delta = delta * _slope(outputs[layer], activation)
    return delta


def _slope(output: Floats, activation: str) -> NDArray[Any]:
    """Return the slope of an activation where it gave this output."""
    slope: NDArray[Any] = 1 - output**2 if activation == "tanh" else output > 0
    return slope


def named(weights: Weights, name: str) -> Weights:
    """Return the weights of one network of a group, without its name."""
    prefix = f"{name}."
    return {key.removeprefix(prefix): array for key, array in weights.items() if key.startswith(prefix)}


def duel(output: Floats) -> Floats:
    """Return Q (n, actions, ...) of value and advantages (n, 1 + actions, ...): Q = V + A - mean(A).

    Wang et al. 2016, arXiv 1511.06581, equation 9; both streams share every hidden layer.
    """
    advantages = output[:, 1:]
    q: Floats = output[:, :1] + advantages - advantages.mean(axis=1, keepdims=True)
    return q


def duel_gradient(delta: Floats) -> Floats:
    """Return the gradient (n, 1 + actions, ...) of value and advantages for the gradient (n, actions, ...) of Q."""
    return np.concatenate([delta.sum(axis=1, keepdims=True), delta - delta.mean(axis=1, keepdims=True)], axis=1)
