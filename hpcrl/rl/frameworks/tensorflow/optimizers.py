"""The aligned optimisers on one flat gradient (formulae: hpcrl.rl.specification.optimizers), and Keras's own.

`numbers` runs on the host and returns the values that change at every step as an array, so that tf.function traces once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hpcrl.catalogue.training import OptimizerSettings
from hpcrl.rl.specification.optimizers import BETA1, BETA2

Variables = list[Any]


def split(flat: Any, variables: Variables) -> list[Any]:
    """Split a flat vector into the shapes of the variables."""
    sizes = [int(np.prod(variable.shape)) for variable in variables]
    return [tf.reshape(part, variable.shape) for part, variable in zip(tf.split(flat, sizes), variables, strict=True)]


def _zeros(variables: Variables) -> Any:
    return tf.Variable(tf.zeros(sum(int(np.prod(variable.shape)) for variable in variables)))


class Adam:
    """torch.optim.Adam's formula; Keras's own adds epsilon to the uncorrected moment."""

    def __init__(self, variables: Variables, settings: OptimizerSettings) -> None:
        self.steps = 0
        self._variables, self._epsilon = variables, settings.optimizer_epsilon
        self._first, self._second = _zeros(variables), _zeros(variables)

    def numbers(self, learning_rate: float) -> NDArray[np.float32]:
        self.steps += 1
        rate = learning_rate / (1 - BETA1**self.steps)
        return np.array([rate, (1 - BETA2**self.steps) ** 0.5], np.float32)

    def apply(self, gradient: Any, numbers: Any) -> None:
        first = self._first.assign_add((1 - BETA1) * (gradient - self._first))
        second = self._second.assign(BETA2 * self._second + (1 - BETA2) * gradient * gradient)
        change = numbers[0] * first / (tf.sqrt(second) / numbers[1] + self._epsilon)
        for variable, part in zip(self._variables, split(change, self._variables), strict=True):
            variable.assign_sub(part)

    def slots(self) -> list[Any]:
        return [self._first, self._second]

    def restore(self, steps: int) -> None:
        self.steps = steps


class RmsProp:
    """torch.optim.RMSprop's formula; Keras's own has epsilon inside the root."""

    def __init__(self, variables: Variables, settings: OptimizerSettings) -> None:
        self.steps = 0
        self._variables, self._epsilon = variables, settings.optimizer_epsilon
        self._decay = settings.rmsprop_decay
        self._second = _zeros(variables)

    def numbers(self, learning_rate: float) -> NDArray[np.float32]:
        self.steps += 1
        return np.array([learning_rate], np.float32)

    def apply(self, gradient: Any, numbers: Any) -> None:
        second = self._second.assign(self._decay * self._second + (1 - self._decay) * gradient * gradient)
        change = numbers[0] * gradient / (tf.sqrt(second) + self._epsilon)
        for variable, part in zip(self._variables, split(change, self._variables), strict=True):
            variable.assign_sub(part)

    def slots(self) -> list[Any]:
        return [self._second]

    def restore(self, steps: int) -> None:
        self.steps = steps


class Sgd:
    """keras.optimizers.SGD's formula without momentum."""

    def __init__(self, variables: Variables) -> None:
        self.steps = 0
        self._variables = variables

    def numbers(self, learning_rate: float) -> NDArray[np.float32]:
        self.steps += 1
        return np.array([learning_rate], np.float32)

    def apply(self, gradient: Any, numbers: Any) -> None:
        for variable, part in zip(self._variables, split(numbers[0] * gradient, self._variables), strict=True):
            variable.assign_sub(part)

    def slots(self) -> list[Any]:
        return []

    def restore(self, steps: int) -> None:
        self.steps = steps


class Own:
    """The class of keras.optimizers, unchanged; only the learning rate comes from the study."""

    def __init__(self, variables: Variables, settings: OptimizerSettings) -> None:
        kinds = {
            "adam": tf.keras.optimizers.Adam,
            "rmsprop": tf.keras.optimizers.RMSprop,
            "sgd": tf.keras.optimizers.SGD,
        }
        self._variables = variables
        self._optimizer = kinds[settings.optimizer]()
        self._optimizer.build(variables)

    @property
    def steps(self) -> int:
        return int(self._optimizer.iterations.numpy())

    def numbers(self, learning_rate: float) -> NDArray[np.float32]:
        self._optimizer.learning_rate.assign(learning_rate)
        return np.array([learning_rate], np.float32)

    def apply(self, gradient: Any, numbers: Any) -> None:
        self._optimizer.apply(split(gradient, self._variables), self._variables)

    def slots(self) -> list[Any]:
        return [variable.value for variable in self._optimizer.variables[2:]]

    def restore(self, steps: int) -> None:
        self._optimizer.iterations.assign(steps)


def make(variables: Variables, settings: OptimizerSettings) -> Adam | RmsProp | Sgd | Own:
    """Return the optimiser of the settings, for variables that it changes in place."""
    if settings.defaults == "framework":
        return Own(variables, settings)
    if settings.optimizer == "sgd":
        return Sgd(variables)
    return Adam(variables, settings) if settings.optimizer == "adam" else RmsProp(variables, settings)
