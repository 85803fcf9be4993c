"""Multi-layer perceptrons: forward and backward. Layers are weights by hpcrl's names, (out, in) and (out,)."""

from __future__ import annotations

import numpy as np

from hpcrl.rl.interfaces import Floats, Weights


def forward(weights: Weights, observations: Floats, activation: str = "relu") -> list[Floats]:
    """Return the input (n, inputs) and the output of every layer, with ReLU or tanh after all but the last."""
    outputs = [observations]
    layers = len(weights) // 2
    for layer in range(layers):
        linear = outputs[-1] @ weights[f"layers.{layer}.weight"].T + weights[f"layers.{layer}.bias"]
        if layer < layers - 1:
            linear = np.tanh(linear) if activation == "tanh" else np.maximum(linear, 0.0)
        outputs.append(linear)
    return outputs


def backward(weights: Weights, outputs: list[Floats], delta: Floats, activation: str = "relu") -> Weights:
    """Return the gradients of the weights for the gradient `delta` (n, outputs) of the last output of :func:`forward`."""
    gradients: Weights = {}
    for layer in reversed(range(len(weights) // 2)):
        gradients[f"layers.{layer}.weight"] = delta.T @ outputs[layer]
        gradients[f"layers.{layer}.bias"] = delta.sum(axis=0)
        if layer:
            slope = 1 - outputs[layer] ** 2 if activation == "tanh" else outputs[layer] > 0
            delta = (delta @ weights[f"layers.{layer}.weight"]) * slope
    return gradients


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
