"""DQN in plain NumPy: the executable specification, with which the other learners are compared.

Runs in float32 or float64; its gradients are checked by finite differences in the tests.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.errors import UsageError
from hpcrl.rl import checkpoint
from hpcrl.rl.frameworks.numpy.optimizers import Adam, RmsProp
from hpcrl.rl.learner import Batch, Collective, DqnSettings, Floats, Network, Weights, weight_names


def forward(weights: Weights, observations: Floats) -> list[Floats]:
    """Return the input (n, inputs) and the output of every layer; the last is (n, actions), or one more if duelling."""
    outputs = [observations]
    layers = len(weights) // 2
    for layer in range(layers):
        linear = outputs[-1] @ weights[f"layers.{layer}.weight"].T + weights[f"layers.{layer}.bias"]
        outputs.append(np.maximum(linear, 0.0) if layer < layers - 1 else linear)
    return outputs


def q_values(weights: Weights, observations: Floats, dueling: bool) -> Floats:
    """Return Q (n, actions): the last layer, or with duelling V + A - mean(A) of it."""
    return combine(forward(weights, observations)[-1]) if dueling else forward(weights, observations)[-1]


def combine(output: Floats) -> Floats:
    """Return Q (n, actions) of value and advantages (n, 1 + actions): Q = V + A - mean(A)."""
    advantages = output[:, 1:]
    q: Floats = output[:, :1] + advantages - advantages.mean(axis=1, keepdims=True)
    return q


def targets(
    weights: Weights, target: Weights, batch: Batch, gamma: float, double: bool, dueling: bool = False
) -> Floats:
    """Return r + gamma (1 - terminated) max_a Q_target(s', a) (n,), the maximum chosen by the online network if double.

    Mnih et al. 2015; van Hasselt et al. 2016 (arXiv 1509.06461) for the double form.
    """
    dtype = weights["layers.0.weight"].dtype
    following = batch.next_observations.astype(dtype)
    values = q_values(target, following, dueling)
    if double:
        chosen = q_values(weights, following, dueling).argmax(axis=1)
        best = values[np.arange(len(chosen)), chosen]
    else:
        best = values.max(axis=1)
    wanted: Floats = batch.rewards.astype(dtype) + dtype.type(gamma) * (1 - batch.terminated.astype(dtype)) * best
    return wanted


def loss_and_gradients(
    weights: Weights, batch: Batch, wanted: Floats, kind: str, dueling: bool = False
) -> tuple[float, Weights]:
    """Return the mean loss of Q(s, a) against `wanted` (n,), and its gradients by back-propagation.

    Huber (delta 1): e^2/2 for |e| <= 1, else |e| - 1/2. MSE: e^2, without a half.
    """
    dtype = weights["layers.0.weight"].dtype
    outputs = forward(weights, batch.observations.astype(dtype))
    rows = np.arange(len(wanted))
    values = combine(outputs[-1]) if dueling else outputs[-1]
    errors = values[rows, batch.actions] - wanted
    if kind == "huber":
        small = np.abs(errors) <= 1
        loss = np.where(small, errors**2 / 2, np.abs(errors) - 0.5).mean()
        slope = np.clip(errors, -1, 1) / len(errors)
    else:
        loss = (errors**2).mean()
        slope = 2 * errors / len(errors)
    delta = np.zeros_like(values)
    delta[rows, batch.actions] = slope
    if dueling:
        delta = np.concatenate([delta.sum(axis=1, keepdims=True), delta - delta.mean(axis=1, keepdims=True)], axis=1)
    gradients: Weights = {}
    for layer in reversed(range(len(weights) // 2)):
        gradients[f"layers.{layer}.weight"] = delta.T @ outputs[layer]
        gradients[f"layers.{layer}.bias"] = delta.sum(axis=0)
        if layer:
            delta = (delta @ weights[f"layers.{layer}.weight"]) * (outputs[layer] > 0)
    return float(loss), gradients


def clip(gradients: Weights, most: float) -> Weights:
    """Scale gradients so that their joint Euclidean norm is at most `most` (0: no clipping).

    The factor is min(1, most / (norm + 1e-6)), as in torch.nn.utils.clip_grad_norm_.
    """
    if not most:
        return gradients
    norm = np.sqrt(sum(float((each.astype(np.float64) ** 2).sum()) for each in gradients.values()))
    factor = min(1.0, most / (norm + 1e-6))
    return {name: each * each.dtype.type(factor) for name, each in gradients.items()}


class Learner:
    """The learner; `dtype` is float32, or float64 as the reference of the parity tests."""

    def __init__(
        self,
        network: Network,
        weights: Weights,
        settings: DqnSettings,
        execution: str = "eager",
        device: str = "cpu",
        collective: Collective | None = None,
        dtype: type[np.floating[Any]] = np.float32,
    ) -> None:
        if device != "cpu" or collective is not None:
            raise UsageError("numpy: expected one rank on the CPU: it has no parallelism and no GPU")
        self._online = {name: weights[name].astype(dtype) for name in weight_names(network)}
        self._target = {name: each.copy() for name, each in self._online.items()}
        self._settings, self._dueling = settings, network.dueling
        self._optimizer: Adam | RmsProp
        if settings.optimizer == "adam":
            self._optimizer = Adam(self._online, settings.optimizer_epsilon)
        else:
            self._optimizer = RmsProp(self._online, settings.optimizer_epsilon, settings.rmsprop_decay)

    def act(self, observations: NDArray[np.float32]) -> NDArray[np.int64]:
        actions: NDArray[np.int64] = q_values(self._online, observations, self._dueling).argmax(axis=1)
        return actions

    def transfer(self, batch: Batch) -> Batch:
        return batch

    def update(self, batch: Batch, learning_rate: float) -> None:
        known = self._settings
        wanted = targets(self._online, self._target, batch, known.gamma, known.double, self._dueling)
        _, gradients = loss_and_gradients(self._online, batch, wanted, known.loss, self._dueling)
        self._optimizer.apply(self._online, clip(gradients, known.max_gradient_norm), learning_rate)

    def sync_target(self) -> None:
        for name, each in self._online.items():
            self._target[name][...] = each

    def synchronize(self) -> None:
        """Do nothing: NumPy is synchronous."""

    def compiled(self) -> str:
        return "nothing: NumPy compiles nothing"

    def peak_memory(self) -> int | None:
        return None

    def weights(self) -> Weights:
        return {name: each.copy() for name, each in self._online.items()}

    def state(self) -> Weights:
        state: Weights = {"steps": np.array([self._optimizer.steps], np.float64)}
        for kind, values in self._parts().items():
            state |= checkpoint.nested(kind, values)
        return state

    def load_state(self, state: Weights) -> None:
        self._optimizer.steps = int(state["steps"][0])
        for kind, values in self._parts().items():
            for name, each in checkpoint.part(kind, state).items():
                values[name][...] = each

    def _parts(self) -> dict[str, Weights]:
        return {"online": self._online, "target": self._target, **self._optimizer.slots()}
