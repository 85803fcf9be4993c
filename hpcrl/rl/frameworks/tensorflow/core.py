"""The TensorFlow learner on plain variables. Lazy mode is tf.function of a whole update; `xla` compiles that with XLA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hpcrl.rl import checkpoint
from hpcrl.rl.distributed.collective import Collective
from hpcrl.rl.frameworks.tensorflow import optimizers, runtime
from hpcrl.rl.frameworks.tensorflow.layers import variables
from hpcrl.rl.interfaces import Actions, Algorithm, Arrays, Observations, Step, Weights
from hpcrl.rl.staging import Inputs
from hpcrl.rl.weights import inputs_first, outputs_first

Tensors = list[Any]


class Learner:
    """The learner, on the CPU or one GPU; `page` is the algorithm's module of this package."""

    burst = None

    def __init__(
        self,
        algorithm: Algorithm,
        page: Any,
        weights: dict[str, Weights],
        execution: str = "eager",
        device: str = "cpu",
        collective: Collective | None = None,
    ) -> None:
        runtime.check_device(device)
        self._execution, self._compile = execution, runtime.compiler(execution)
        self._page, self._settings, self._collective = page, algorithm.settings, collective
        self._names = {name: list(weights[group]) for name, group in algorithm.origins.items()}
        self._variables = {
            name: variables(weights[group], trainable=name in algorithm.groups)
            for name, group in algorithm.origins.items()
        }
        self._optimizers = {name: optimizers.make(self._variables[name], self._settings) for name in algorithm.groups}
        self._show, self._transfer = runtime.Transfer(), runtime.Transfer()
        self._counted: list[Any] = []
        self._updates = {step.name: (self._program(step), self._optimizers[step.group]) for step in algorithm.steps}
        self._syncs = {name: self._sync_program(name, group) for name, group in algorithm.targets.items()}
        self._greedy = self._acting("greedy", algorithm.acts_with)
        self._sample = self._acting("sample", algorithm.acts_with, *algorithm.samples_with)

    def _sync_program(self, target: str, group: str) -> Callable[[float], None]:
        """Return the function that moves a target copy by a share of the way to its group."""
        program: Callable[[float], None] = self._compile(_following(self._variables[target], self._variables[group]))
        return program

    def _acting(self, name: str, *groups: str) -> runtime.Program:
        """Return a function of the page that acts; not every page has `sample`."""
        function: Any = getattr(self._page, name, None)
        settings, networks = self._settings, [self._variables[group] for group in groups]

        def outputs(*arrays: Any) -> tuple[Any, ...]:
            result = function(*arrays, settings, *networks)
            return result if isinstance(result, tuple) else (result,)

        return runtime.Program(self._execution, outputs)

    def _program(self, step: Step) -> Callable[[Inputs, Any], Any]:
        """Return the update of a step from a batch and the optimiser's numbers: one function, or two with the averaging between."""
        optimizer, largest = self._optimizers[step.group], self._settings.max_gradient_norm
        gradient = self._gradient(step)

        def apply(change: Any, numbers: Any) -> None:
            optimizer.apply(_clipped(change, largest), numbers)

        def whole_update(*tensors: Any) -> Any:
            *batch, numbers = tensors
            change, aux = gradient(batch)
            apply(change, numbers)
            return aux

        if self._collective is None:
            whole = runtime.Program(self._execution, whole_update)
            self._counted.append(whole.function)
            return whole
        self._counted.append(compiled := self._compile(gradient))
        mean, finish = self._collective.averaged(compiled), self._compile(apply)

        def update_in_parts(batch: Inputs, numbers: Any) -> Any:
            change, aux = mean(batch.arrays)
            finish(change, numbers)
            return aux

        return update_in_parts

    def _gradient(self, step: Step) -> Callable[[Tensors], tuple[Any, Any]]:
        """Return the function from a batch to the flat gradient and the aux of a step's loss."""
        loss, settings, own = getattr(self._page, step.loss), self._settings, self._variables[step.group]
        uses = [self._variables[name] for name in step.uses]

        def gradient(batch: Tensors) -> tuple[Any, Any]:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(own)
                result = loss(own, batch, settings, *uses)
                value, aux = result if step.aux else (result, ())
            return tf.concat([tf.reshape(part, [-1]) for part in tape.gradient(value, own)], 0), aux

        return gradient

    def act(self, observations: Observations) -> Actions:
        (actions,) = self._greedy(self._show([observations]))
        array: Actions = actions.numpy()
        return array

    def sample(self, observations: Observations, noise: NDArray[np.float32]) -> Arrays:
        return self.read(self._sample(self._show((observations, noise))))

    def transfer(self, batch: Arrays) -> Inputs:
        return self._transfer(batch)

    def update(self, step: str, batch: Inputs, learning_rate: float) -> Any:
        update, optimizer = self._updates[step]
        return update(batch, *self._transfer([optimizer.numbers(learning_rate)]).arrays)

    def read(self, aux: Any) -> Arrays:
        return tuple(tensor.numpy() for tensor in aux)

    def sync(self, target: str, share: float = 1.0) -> None:
        self._syncs[target](share)

    def synchronize(self) -> None:
        runtime.wait()

    def compiled(self) -> str:
        acting = [self._greedy.function, self._sample.function]
        return runtime.compiled(self._execution, self._counted, acting)

    def peak_memory(self) -> int | None:
        return runtime.peak_memory()

    def weights(self, name: str) -> Weights:
        arrays = [outputs_first(variable.numpy()).copy() for variable in self._variables[name]]
        return dict(zip(self._names[name], arrays, strict=True))

    def state(self) -> Weights:
        state: Weights = {}
        for name in self._variables:
            state |= checkpoint.nested(name, self.weights(name))
        for group, optimizer in self._optimizers.items():
            slots = [slot.numpy() for slot in optimizer.slots()]
            state |= checkpoint.optimizer_state(group, optimizer.steps, slots)
        return state

    def load_state(self, state: Weights) -> None:
        for name, layers in self._variables.items():
            for key, variable in zip(self._names[name], layers, strict=True):
                variable.assign(inputs_first(state[f"{name}/{key}"]))
        for group, optimizer in self._optimizers.items():
            steps, slots = checkpoint.optimizer_part(group, state)
            optimizer.restore(steps)
            for slot, array in zip(optimizer.slots(), slots, strict=True):
                slot.assign(array)


def _clipped(change: Any, largest: float) -> Any:
    """Scale a flat gradient so that its norm is at most `largest` (0: never)."""
    if not largest:
        return change
    norm = tf.sqrt(tf.reduce_sum(change * change))
    return change * tf.minimum(1.0, largest / (norm + 1e-6))


def _following(copies: Tensors, leading: Tensors) -> Callable[[float], None]:
    """Return the function that moves copies by a share of the way to the variables that they follow."""

    def follow(share: float) -> None:
        for copy, variable in zip(copies, leading, strict=True):
            copy.assign(variable if share == 1.0 else copy + share * (variable - copy))

    return follow
