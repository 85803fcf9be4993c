"""DQN in plain NumPy: the executable specification that the other learners are held to.

Runs in float32 or float64; its gradients are checked by finite differences in the tests.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.rl.learner import Batch, Floats, Network, Weights, weight_names

BETA1, BETA2 = 0.9, 0.999


def forward(weights: Weights, observations: Floats) -> list[Floats]:
    """Return the input (n, inputs) and the output of every layer; the last is the Q values (n, actions)."""
    outputs = [observations]
    layers = len(weights) // 2
    for layer in range(layers):
        linear = outputs[-1] @ weights[f"layers.{layer}.weight"].T + weights[f"layers.{layer}.bias"]
        outputs.append(np.maximum(linear, 0.0) if layer < layers - 1 else linear)
    return outputs


def targets(weights: Weights, target: Weights, batch: Batch, gamma: float, double: bool) -> Floats:
    """Return r + gamma (1 - terminated) max_a Q_target(s', a) (n,), the maximum chosen by the online network if double.

    Mnih et al. 2015; van Hasselt et al. 2016 (arXiv 1509.06461) for the double form.
    """
    dtype = weights["layers.0.weight"].dtype
    following = batch.next_observations.astype(dtype)
    values = forward(target, following)[-1]
    if double:
        chosen = forward(weights, following)[-1].argmax(axis=1)
        best = values[np.arange(len(chosen)), chosen]
    else:
        best = values.max(axis=1)
    wanted: Floats = batch.rewards.astype(dtype) + dtype.type(gamma) * (1 - batch.terminated.astype(dtype)) * best
    return wanted


def loss_and_gradients(weights: Weights, batch: Batch, wanted: Floats, kind: str) -> tuple[float, Weights]:
    """Return the mean loss of Q(s, a) against `wanted` (n,), and its gradients by back-propagation.

    Huber (delta 1): e^2/2 for |e| <= 1, else |e| - 1/2. MSE: e^2, without a half.
    """
    dtype = weights["layers.0.weight"].dtype
    outputs = forward(weights, batch.observations.astype(dtype))
    rows = np.arange(len(wanted))
    errors = outputs[-1][rows, batch.actions] - wanted
    if kind == "huber":
        small = np.abs(errors) <= 1
        loss = np.where(small, errors**2 / 2, np.abs(errors) - 0.5).mean()
        slope = np.clip(errors, -1, 1) / len(errors)
    else:
        loss = (errors**2).mean()
        slope = 2 * errors / len(errors)
    delta = np.zeros_like(outputs[-1])
    delta[rows, batch.actions] = slope
    gradients: Weights = {}
    for layer in reversed(range(len(weights) // 2)):
        gradients[f"layers.{layer}.weight"] = delta.T @ outputs[layer]
        gradients[f"layers.{layer}.bias"] = delta.sum(axis=0)
        if layer:
            delta = (delta @ weights[f"layers.{layer}.weight"]) * (outputs[layer] > 0)
    return float(loss), gradients


def clip(gradients: Weights, most: float) -> Weights:
    """Scale gradients so that their joint Euclidean norm is at most `most` (0: never).

    The factor is min(1, most / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ has it.
    """
    if not most:
        return gradients
    norm = np.sqrt(sum(float((each.astype(np.float64) ** 2).sum()) for each in gradients.values()))
    factor = min(1.0, most / (norm + 1e-6))
    return {name: each * each.dtype.type(factor) for name, each in gradients.items()}


class NumpyDqn:
    """The learner; `dtype` is float32, or float64 as the reference of the parity tests."""

    def __init__(
        self,
        network: Network,
        weights: Weights,
        *,
        gamma: float = 0.99,
        max_gradient_norm: float = 10.0,
        loss: str = "huber",
        double: bool = False,
        adam_epsilon: float = 1e-8,
        dtype: type[np.floating[Any]] = np.float32,
    ) -> None:
        self._names = weight_names(network)
        self._online = {name: weights[name].astype(dtype) for name in self._names}
        self._target = {name: each.copy() for name, each in self._online.items()}
        self._first = {name: np.zeros_like(each) for name, each in self._online.items()}
        self._second = {name: np.zeros_like(each) for name, each in self._online.items()}
        self._steps = 0
        self._gamma, self._loss, self._double = gamma, loss, double
        self._clip, self._epsilon = max_gradient_norm, adam_epsilon

    def act(self, observations: NDArray[np.float32]) -> NDArray[np.int64]:
        actions: NDArray[np.int64] = forward(self._online, observations)[-1].argmax(axis=1)
        return actions

    def update(self, batch: Batch, learning_rate: float) -> None:
        wanted = targets(self._online, self._target, batch, self._gamma, self._double)
        _, gradients = loss_and_gradients(self._online, batch, wanted, self._loss)
        self._adam(clip(gradients, self._clip), learning_rate)

    def _adam(self, gradients: Weights, learning_rate: float) -> None:
        """Adam as Kingma & Ba 2015 (arXiv 1412.6980), algorithm 1: both moments corrected, then epsilon added."""
        self._steps += 1
        rate = learning_rate / (1 - BETA1**self._steps)
        scale = np.sqrt(1 - BETA2**self._steps)
        for name, gradient in gradients.items():
            kind = gradient.dtype.type
            first, second = self._first[name], self._second[name]
            first += kind(1 - BETA1) * (gradient - first)
            second *= kind(BETA2)
            second += kind(1 - BETA2) * gradient * gradient
            self._online[name] -= kind(rate) * first / (np.sqrt(second) / kind(scale) + kind(self._epsilon))

    def sync_target(self) -> None:
        for name, each in self._online.items():
            self._target[name][...] = each

    def synchronize(self) -> None:
        """NumPy has done what it was asked when it returns."""

    def compiled(self) -> str:
        return "nothing: NumPy compiles nothing"

    def weights(self) -> Weights:
        return {name: each.copy() for name, each in self._online.items()}

    def state(self) -> Weights:
        state: Weights = {"steps": np.array([self._steps], np.float64)}
        for kind, values in self._parts().items():
            state |= {f"{kind}.{name}": each for name, each in values.items()}
        return state

    def load_state(self, state: Weights) -> None:
        self._steps = int(state["steps"][0])
        for kind, values in self._parts().items():
            for name, each in values.items():
                each[...] = state[f"{kind}.{name}"]

    def _parts(self) -> dict[str, Weights]:
        return {"online": self._online, "target": self._target, "first": self._first, "second": self._second}
