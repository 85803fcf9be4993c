"""The optimisers' formulae in NumPy; every framework's aligned optimiser computes the same."""

from __future__ import annotations

import numpy as np

from hpcrl.rl.learner import Weights

BETA1, BETA2 = 0.9, 0.999


class Adam:
    """Adam (Kingma & Ba 2015, arXiv 1412.6980, algorithm 1): both moments are corrected, then epsilon is added.

    m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  w -= rate * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon)
    """

    def __init__(self, weights: Weights, epsilon: float) -> None:
        self.first = {name: np.zeros_like(each) for name, each in weights.items()}
        self.second = {name: np.zeros_like(each) for name, each in weights.items()}
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

    def slots(self) -> dict[str, Weights]:
        """Return the arrays that a checkpoint needs, besides `steps`; they are changed in place."""
        return {"first": self.first, "second": self.second}


class RmsProp:
    """RMSprop (Tieleman & Hinton 2012, Coursera, lecture 6.5) as in torch, with epsilon outside the root.

    v = decay v + (1 - decay) g^2;  w -= rate * g / (sqrt(v) + epsilon)
    """

    def __init__(self, weights: Weights, epsilon: float, decay: float) -> None:
        self.second = {name: np.zeros_like(each) for name, each in weights.items()}
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

    def slots(self) -> dict[str, Weights]:
        """Return the arrays that a checkpoint needs, besides `steps`; they are changed in place."""
        return {"second": self.second}
