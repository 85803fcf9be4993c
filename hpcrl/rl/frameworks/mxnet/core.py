"""The MXNet learner. Lazy mode binds the symbol of a step's loss to its arrays; eager is imperative."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mxnet as mx
import numpy as np
from numpy.typing import NDArray

from hpcrl.rl import checkpoint
from hpcrl.rl.distributed.collective import Collective
from hpcrl.rl.frameworks.mxnet import optimizers, runtime
from hpcrl.rl.frameworks.mxnet.layers import Flat, Layers, layers
from hpcrl.rl.frameworks.mxnet.programs import Program
from hpcrl.rl.interfaces import Actions, Algorithm, Arrays, Observations, Step, Weights
from hpcrl.rl.staging import Inputs, Staging


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
        self._lazy, context = execution == "lazy", runtime.check_device(device)
        self._on_cpu = context == mx.cpu()
        self._page, self._settings, self._collective = page, algorithm.settings, collective
        self._targets, self._action_type = algorithm.targets, algorithm.space.action_dtype
        self._flats = {
            name: Flat(weights[group], context, trainable=name in algorithm.groups)
            for name, group in algorithm.origins.items()
        }
        self._optimizers = {name: optimizers.make(self._flats[name], self._settings) for name in algorithm.groups}
        self._losses = {step.name: self._loss(step) for step in algorithm.steps}
        self._updates = {step.name: self._program(step) for step in algorithm.steps}
        self._greedy = self._acting("greedy", algorithm.acts_with)
        self._sample = self._acting("sample", algorithm.acts_with, *algorithm.samples_with)
        self._shown, self._batches = (Staging(partial(runtime.input_like, context=context)) for _ in range(2))

    def _acting(self, name: str, *groups: str) -> Program:
        """Return a function of the page that acts; not every page has `sample`."""
        function: Any = getattr(self._page, name, None)
        settings, flats = self._settings, [self._flats[group] for group in groups]

        def call(F: Any, inputs: Sequence[Any], networks: Sequence[Sequence[Any]]) -> Any:
            return function(F, *inputs, settings, *_joined(networks, flats))

        return Program(call, flats, self._lazy)

    def _loss(self, step: Step) -> Program:
        """Return the loss of a step, of a batch."""
        loss, settings = getattr(self._page, step.loss), self._settings
        flats = [self._flats[name] for name in (step.group, *step.uses)]

        def call(F: Any, batch: Sequence[Any], networks: Sequence[Sequence[Any]]) -> Any:
            own, *uses = _joined(networks, flats)
            return loss(F, own, batch, settings, *uses)

        return Program(call, flats, self._lazy)

    def _program(self, step: Step) -> Callable[[Inputs, float], list[Any]]:
        """Return the update of a step: the loss and its backward pass, then averaging, clipping and optimiser."""
        loss, flat, optimizer = self._losses[step.name], self._flats[step.group], self._optimizers[step.group]
        largest = self._settings.max_gradient_norm

        def gradient(batch: Inputs) -> tuple[Any, list[Any]]:
            outputs = loss.backward(batch)
            return flat.gradient, outputs[1:]

        mean = gradient if self._collective is None else self._collective.averaged(gradient)

        def whole_update(batch: Inputs, learning_rate: float) -> list[Any]:
            change, aux = mean(batch)
            if change is not flat.gradient:
                change.copyto(flat.gradient)
            optimizers.clip(flat, largest)
            optimizer.apply(learning_rate)
            return aux

        return whole_update

    def act(self, observations: Observations) -> Actions:
        (output,) = self._greedy(self._shown.put([observations]))
        actions: NDArray[np.int64] = output.asnumpy().astype(self._action_type)
        return actions

    def sample(self, observations: Observations, noise: NDArray[np.float32]) -> Arrays:
        actions, *others = self._sample(self._shown.put((observations, noise)))
        return (actions.asnumpy().astype(self._action_type), *(array.asnumpy() for array in others))

    def transfer(self, batch: Arrays) -> Inputs:
        return self._batches.put(batch)

    def update(self, step: str, batch: Inputs, learning_rate: float) -> list[Any]:
        aux = self._updates[step](batch, learning_rate)
        if self._on_cpu:
            mx.nd.waitall()  # NumPy may write the next batch over this one; on a GPU MXNet's engine writes it, in turn
        return aux

    def read(self, aux: Any) -> Arrays:
        return tuple(array.asnumpy() for array in aux)

    def sync(self, target: str, share: float = 1.0) -> None:
        copy, leading = self._flats[target].vector, self._flats[self._targets[target]].vector
        if share == 1.0:
            leading.copyto(copy)
        else:
            copy += share * (leading - copy)

    def synchronize(self) -> None:
        mx.nd.waitall()

    def compiled(self) -> str:
        return runtime.compiled(self._lazy, list(self._losses.values()), [self._greedy, self._sample])

    def peak_memory(self) -> int | None:
        return None  # MXNet's pool reports no peak

    def weights(self, name: str) -> Weights:
        return self._flats[name].weights()

    def state(self) -> Weights:
        state: Weights = {}
        for name in self._flats:
            state |= checkpoint.nested(name, self.weights(name))
        for group, optimizer in self._optimizers.items():
            slots = [slot.asnumpy() for slot in optimizer.slots()]
            state |= checkpoint.optimizer_state(group, optimizer.steps, slots)
        return state

    def load_state(self, state: Weights) -> None:
        for name, flat in self._flats.items():
            flat.load(checkpoint.part(name, state))
        for group, optimizer in self._optimizers.items():
            steps, slots = checkpoint.optimizer_part(group, state)
            optimizer.restore(steps)
            for slot, array in zip(optimizer.slots(), slots, strict=True):
                slot[:] = array


def _joined(networks: Sequence[Sequence[Any]], flats: list[Flat]) -> list[Layers]:
    """Return the layers of several groups from their arrays or symbols."""
    return [layers(values, flat.shapes) for values, flat in zip(networks, flats, strict=True)]
