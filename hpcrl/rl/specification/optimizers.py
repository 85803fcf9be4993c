"""Clipping and the optimisers' formulae; every framework's aligned optimiser computes the same."""

from __future__ import annotations

import numpy as np

from hpcrl.catalogue.training import OptimizerSettings
from hpcrl.rl.interfaces import Floats, Weights

BETA1, BETA2 = 0.9, 0.999


class Adam:
    """Adam (Kingma & Ba 2015, arXiv 1412.6980, algorithm 1): both moments are corrected, then epsilon is added.

    m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  w -= rate * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon)
    """

    def __init__(self, weights: Weights, epsilon: float) -> None:
        self.first = {name: np.zeros_like(array) for name, array in weights.items()}
        self.second = {name: np.zeros_like(array) for name, array in weights.items()}
        self.steps = 0
        self._epsilon = epsilon

    def apply(self, weights: Weights, gradients: Weights, learning_rate: float) -> None:
        """Change the weights in place."""
        self.steps += 1
        rate = learning_rate / (1 - BETA1**self.steps)
        scale = np.sqrt(1 - BETA2**self.steps)
        for name, gradient in gradients.items():
            kind = gradient.dtype.type
            first, second = self.first[name], self.second[name]
            first += kind(1 - BETA1) * (gradient - first)
            second *= kind(BETA2)
            second += kind(1 - BETA2) * gradient * gradient
            weights[name] -= kind(rate) * first / (np.sqrt(second) / kind(scale) + kind(self._epsilon))

    def slots(self) -> list[Floats]:
        """Return the arrays that a checkpoint needs, besides `steps`; they are changed in place."""
        return [*self.first.values(), *self.second.values()]


class RmsProp:
    """RMSprop (Tieleman & Hinton 2012, Coursera, lecture 6.5) as in torch, with epsilon outside the root.

    v = decay v + (1 - decay) g^2;  w -= rate * g / (sqrt(v) + epsilon)
    """

    def __init__(self, weights: Weights, epsilon: float, decay: float) -> None:
        self.second = {name: np.zeros_like(array) for name, array in weights.items()}
        self.steps = 0
        self._epsilon, self._decay = epsilon, decay

    def apply(self, weights: Weights, gradients: Weights, learning_rate: float) -> None:
        """Change the weights in place."""
        self.steps += 1
        for name, gradient in gradients.items():
            kind = gradient.dtype.type
            second = self.second[name]
            second *= kind(self._decay)
            second += kind(1 - self._decay) * gradient * gradient
            weights[name] -= kind(learning_rate) * gradient / (np.sqrt(second) + kind(self._epsilon))

    def slots(self) -> list[Floats]:
        """Return the arrays that a checkpoint needs, besides `steps`; they are changed in place."""
        return list(self.second.values())


class Sgd:
    """Gradient descent on batches, without momentum (Robbins & Monro 1951, doi 10.1214/aoms/1177729586): w -= rate * g."""

    def __init__(self) -> None:
        self.steps = 0

    def apply(self, weights: Weights, gradients: Weights, learning_rate: float) -> None:
        """Change the weights in place."""
        self.steps += 1
        for name, gradient in gradients.items():
            weights[name] -= gradient.dtype.type(learning_rate) * gradient

    def slots(self) -> list[Floats]:
        """Return nothing: there is no array to keep."""
        return []


def make(weights: Weights, settings: OptimizerSettings) -> Adam | RmsProp | Sgd:
    """Return the optimiser of the settings."""
    if settings.optimizer == "adam":
        return Adam(weights, settings.optimizer_epsilon)
    if settings.optimizer == "sgd":
        return Sgd()
    return RmsProp(weights, settings.optimizer_epsilon, settings.rmsprop_decay)


def clip(gradients: Weights, largest: float) -> Weights:
    """Scale gradients so that their joint Euclidean norm is at most `largest` (0: no clipping).

    The factor is min(1, largest / (norm + 1e-6)), as in torch.nn.utils.clip_grad_norm_.
    """
    if not largest:
        return gradients
    norm = np.sqrt(sum(float((array.astype(np.float64) ** 2).sum()) for array in gradients.values()))
    factor = min(1.0, largest / (norm + 1e-6))
    return {name: array * array.dtype.type(factor) for name, array in gradients.items()}
