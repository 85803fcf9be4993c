"""The aligned optimisers (formulae: hpcrl.rl.specification.optimizers), and MXNet's own."""

from __future__ import annotations

from typing import Any

import mxnet as mx

from hpcrl.catalogue.training import OptimizerSettings
from hpcrl.rl.frameworks.mxnet.layers import Flat
from hpcrl.rl.specification.optimizers import BETA1, BETA2

Arrays = list[Any]


class Adam:
    """torch.optim.Adam's formula from MXNet's operator, which adds epsilon to the uncorrected moment.

    lr m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + e) = lr s / (1 - b1^t) m / (sqrt(v) + e s) with s = sqrt(1 - b2^t).
    """

    def __init__(self, flat: Flat, settings: OptimizerSettings) -> None:
        self.steps = 0
        self._flat, self._epsilon = flat, settings.optimizer_epsilon
        self._first, self._second = (mx.nd.zeros_like(flat.vector) for _ in range(2))

    def apply(self, learning_rate: float) -> None:
        self.steps += 1
        scale = (1 - BETA2**self.steps) ** 0.5
        rate = learning_rate * scale / (1 - BETA1**self.steps)
        weights, gradient = self._flat.vector, self._flat.gradient
        mx.nd.adam_update(
            weights, gradient, self._first, self._second, lr=rate, beta1=BETA1, beta2=BETA2,
            epsilon=self._epsilon * scale, out=weights,
        )  # fmt: skip

    def slots(self) -> Arrays:
        return [*self._flat.parts(self._first), *self._flat.parts(self._second)]

    def restore(self, steps: int) -> None:
        self.steps = steps


class RmsProp:
    """torch.optim.RMSprop's formula; MXNet's own operator has epsilon inside the root."""

    def __init__(self, flat: Flat, settings: OptimizerSettings) -> None:
        self.steps = 0
        self._flat, self._epsilon, self._decay = flat, settings.optimizer_epsilon, settings.rmsprop_decay
        self._second = mx.nd.zeros_like(flat.vector)

    def apply(self, learning_rate: float) -> None:
        self.steps += 1
        weights, gradient, second = self._flat.vector, self._flat.gradient, self._second
        second *= self._decay
        second += (1 - self._decay) * gradient * gradient
        weights -= learning_rate * gradient / (second.sqrt() + self._epsilon)

    def slots(self) -> Arrays:
        return self._flat.parts(self._second)

    def restore(self, steps: int) -> None:
        self.steps = steps


class Sgd:
    """mxnet.optimizer.SGD's formula without momentum."""

    def __init__(self, flat: Flat) -> None:
        self.steps = 0
        self._flat = flat

    def apply(self, learning_rate: float) -> None:
        self.steps += 1
        weights = self._flat.vector
        weights -= learning_rate * self._flat.gradient

    def slots(self) -> Arrays:
        return []

    def restore(self, steps: int) -> None:
        self.steps = steps


class Own:
    """The class of mxnet.optimizer, unchanged; only the learning rate comes from the study."""

    def __init__(self, flat: Flat, settings: OptimizerSettings) -> None:
        self._flat = flat
        self._optimizer = mx.optimizer.create(settings.optimizer)
        self._updater = mx.optimizer.get_updater(self._optimizer)
        for number, weight in enumerate(flat.views):
            self._updater.states[number] = self._optimizer.create_state(number, weight)
            self._updater.states_synced[number] = True

    @property
    def steps(self) -> int:
        return int(self._optimizer.num_update)

    def apply(self, learning_rate: float) -> None:
        self._optimizer.set_learning_rate(learning_rate)
        for number, (weight, gradient) in enumerate(zip(self._flat.views, self._flat.gradients, strict=True)):
            self._updater(number, gradient, weight)

    def slots(self) -> Arrays:
        states = self._updater.states
        return [array for number in sorted(states) for array in states[number] or ()]  # SGD has none

    def restore(self, steps: int) -> None:
        self._optimizer.num_update = steps
        self._optimizer._index_update_count.update(dict.fromkeys(self._updater.states, steps))


def make(flat: Flat, settings: OptimizerSettings) -> Adam | RmsProp | Sgd | Own:
    """Return the optimiser of the settings, for weights that it changes in place."""
    if settings.defaults == "framework":
        return Own(flat, settings)
    if settings.optimizer == "sgd":
        return Sgd(flat)
    return Adam(flat, settings) if settings.optimizer == "adam" else RmsProp(flat, settings)


def clip(flat: Flat, most: float) -> None:
    """Scale the gradient in place so that its norm is at most `most` (0: never), without waiting for the norm."""
    if most:
        norm = mx.nd.multi_sum_sq(*flat.gradients, num_arrays=len(flat.gradients)).sum().sqrt()
        mx.nd.broadcast_mul(flat.gradient, mx.nd.minimum(most / (norm + 1e-6), 1.0), out=flat.gradient)
