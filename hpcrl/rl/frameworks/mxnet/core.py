"""The MXNet learner. Lazy mode hybridizes a step's loss as one graph with static allocation; eager is imperative."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd
from numpy.typing import NDArray

from hpcrl.rl import checkpoint
from hpcrl.rl.distributed.collective import Collective
from hpcrl.rl.frameworks.mxnet import optimizers, runtime
from hpcrl.rl.frameworks.mxnet.layers import Function, Layers, arrays, layers
from hpcrl.rl.interfaces import Actions, Algorithm, Arrays, Observations, Step, Weights


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
        self._context, self._lazy = runtime.check_device(device), execution == "lazy"
        self._page, self._settings, self._collective = page, algorithm.settings, collective
        self._targets, self._action_type = algorithm.targets, algorithm.space.action_dtype
        self._names = {name: list(weights[group]) for name, group in algorithm.origins.items()}
        self._arrays = {
            name: arrays(weights[group], self._context, trainable=name in algorithm.groups)
            for name, group in algorithm.origins.items()
        }
        self._shapes = {name: [array.shape for array in own] for name, own in self._arrays.items()}
        self._optimizers = {name: optimizers.make(self._arrays[name], self._settings) for name in algorithm.groups}
        self._losses = {step.name: self._loss(step) for step in algorithm.steps}
        self._updates = {step.name: self._program(step) for step in algorithm.steps}
        sampling = (algorithm.acts_with, *algorithm.samples_with)
        self._acts_with, self._samples_with = self._arrays[algorithm.acts_with], self._arrays_of(sampling)
        self._greedy = self._acting(page.greedy, 1, algorithm.acts_with)
        self._sample = self._acting(page.sample, 2, *sampling) if hasattr(page, "sample") else None

    def _arrays_of(self, names: Sequence[str]) -> list[Any]:
        """Return the arrays of several groups and copies."""
        return [array for name in names for array in self._arrays[name]]

    def _hybridized(self, call: Callable[..., Any], **options: bool) -> Function:
        function = Function(call)
        if self._lazy:
            function.hybridize(static_alloc=True, **options)
        return function

    def _acting(self, function: Callable[..., Any], inputs: int, *groups: str) -> Function:
        """Return a function of the page that acts, of its `inputs` arrays and then those of the groups."""
        settings, shapes = self._settings, [self._shapes[group] for group in groups]
        return self._hybridized(
            lambda F, *values: function(F, *values[:inputs], settings, *_networks(values[inputs:], shapes))
        )

    def _loss(self, step: Step) -> Function:
        """Return the loss of a step as a function of the arrays of its groups, then those of the batch."""
        loss, settings = getattr(self._page, step.loss), self._settings
        shapes = [self._shapes[name] for name in (step.group, *step.uses)]
        weights = sum(len(own_shapes) for own_shapes in shapes)

        def call(F: Any, *values: Any) -> Any:
            own, *uses = _networks(values, shapes)
            return loss(F, own, values[weights:], settings, *uses)

        return self._hybridized(call, static_shape=True)

    def _program(self, step: Step) -> Callable[[list[Any], float], tuple[Any, ...]]:
        """Return the update of a step: the recorded loss, the backward pass, then averaging, clipping and optimiser."""
        loss, own, optimizer = self._losses[step.name], self._arrays[step.group], self._optimizers[step.group]
        weights = self._arrays_of((step.group, *step.uses))
        largest, gradients = self._settings.max_gradient_norm, [array.grad for array in own]

        def gradient(batch: list[Any]) -> tuple[Any, tuple[Any, ...]]:
            with autograd.record():
                result = loss.call(*weights, *batch)
            value, *aux = result if step.aux else (result,)
            value.backward()
            return gradients, tuple(aux)

        def flat_gradient(batch: list[Any]) -> tuple[Any, tuple[Any, ...]]:
            parts, aux = gradient(batch)
            return mx.nd.concat(*[part.reshape(-1) for part in parts], dim=0), aux

        mean = self._collective.averaged(flat_gradient) if self._collective is not None else None

        def whole_update(batch: list[Any], learning_rate: float) -> tuple[Any, ...]:
            change, aux = gradient(batch) if mean is None else mean(batch)
            if mean is not None:
                change = _split(change, own)
            optimizers.clip(change, largest)
            optimizer.apply(own, change, learning_rate)
            return aux

        return whole_update

    def act(self, observations: Observations) -> Actions:
        output = self._greedy.call(self._array(observations), *self._acts_with)
        actions: NDArray[np.int64] = output.asnumpy().astype(self._action_type)
        return actions

    def sample(self, observations: Observations, noise: NDArray[np.float32]) -> Arrays:
        assert self._sample is not None
        sampled = self._sample.call(*self.transfer((observations, noise)), *self._samples_with)
        # A block gives a single output by itself.
        actions, *others = sampled if isinstance(sampled, list | tuple) else (sampled,)
        return (actions.asnumpy().astype(self._action_type), *(array.asnumpy() for array in others))

    def _array(self, values: NDArray[Any]) -> Any:
        if self._context == mx.cpu():
            # A copy by NumPy, which MXNet takes over: a third of the time of its own copy. The caller may change `values`.
            return mx.nd.from_numpy(values.astype(np.float32, order="C"), zero_copy=True)
        return mx.nd.array(values, ctx=self._context, dtype=np.float32)

    def transfer(self, batch: Arrays) -> list[Any]:
        return [self._array(array) for array in batch]

    def update(self, step: str, batch: list[Any], learning_rate: float) -> tuple[Any, ...]:
        return self._updates[step](batch, learning_rate)

    def read(self, aux: Any) -> Arrays:
        return tuple(array.asnumpy() for array in aux)

    def sync(self, target: str, share: float = 1.0) -> None:
        for copy, array in zip(self._arrays[target], self._arrays[self._targets[target]], strict=True):
            if share == 1.0:
                array.copyto(copy)
            else:
                copy += share * (array - copy)

    def synchronize(self) -> None:
        mx.nd.waitall()

    def compiled(self) -> str:
        return runtime.compiled(self._lazy, {**self._losses, "acting": self._greedy})

    def peak_memory(self) -> int | None:
        return None  # MXNet's pool reports no peak

    def weights(self, name: str) -> Weights:
        return {key: array.asnumpy() for key, array in zip(self._names[name], self._arrays[name], strict=True)}

    def state(self) -> Weights:
        state: Weights = {}
        for name in self._arrays:
            state |= checkpoint.nested(name, self.weights(name))
        for group, optimizer in self._optimizers.items():
            slots = [slot.asnumpy() for slot in optimizer.slots()]
            state |= checkpoint.optimizer_state(group, optimizer.steps, slots)
        return state

    def load_state(self, state: Weights) -> None:
        for name, values in self._arrays.items():
            for key, array in zip(self._names[name], values, strict=True):
                array[:] = state[f"{name}/{key}"]
        for group, optimizer in self._optimizers.items():
            steps, slots = checkpoint.optimizer_part(group, state)
            optimizer.restore(steps)
            for slot, array in zip(optimizer.slots(), slots, strict=True):
                slot[:] = array


def _networks(values: Sequence[Any], shapes: list[list[tuple[int, ...]]]) -> list[Layers]:
    """Cut the arrays of several groups, which come first in `values`, into the layers of each."""
    networks, start = [], 0
    for own_shapes in shapes:
        networks.append(layers(values[start : start + len(own_shapes)], own_shapes))
        start += len(own_shapes)
    return networks


def _split(flat: Any, like: list[Any]) -> list[Any]:
    """Cut a flat gradient into the shapes of arrays."""
    parts, start = [], 0
    for array in like:
        parts.append(flat[start : start + array.size].reshape(array.shape))
        start += array.size
    return parts
