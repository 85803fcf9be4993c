"""The PyTorch learner. Lazy mode compiles a whole update (loss, gradients, clipping, optimiser) as one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hpcrl.rl import checkpoint
from hpcrl.rl.distributed.collective import Collective
from hpcrl.rl.frameworks.torch import optimizers, runtime
from hpcrl.rl.frameworks.torch.layers import Flat, Layers
from hpcrl.rl.interfaces import Actions, Algorithm, Arrays, Observations, Step, Weights

Tensors = list[torch.Tensor]
# A flat gradient, and the aux of the loss.
Change = tuple[torch.Tensor, tuple[torch.Tensor, ...]]


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
        self._lazy = execution == "lazy"
        self._device = runtime.check_device(device, self._lazy)
        self._on_cpu = self._device.type == "cpu"
        self._compile = runtime.compiler(self._lazy)
        self._page, self._settings, self._collective = page, algorithm.settings, collective
        self._targets = algorithm.targets
        self._flats = {name: Flat(weights[group], self._device) for name, group in algorithm.origins.items()}
        self._optimizers = {
            name: optimizers.make(self._flats[name].vector, algorithm.settings, self._lazy) for name in algorithm.groups
        }
        self._updates = {step.name: (self._program(step), self._optimizers[step.group]) for step in algorithm.steps}
        self._greedy = self._acting("greedy", algorithm.acts_with)
        self._sample = self._acting("sample", algorithm.acts_with, *algorithm.samples_with)

    def _reader(self, name: str) -> Callable[[], Layers]:
        """Return the function that gives current layers.

        Eager code uses views that are made once, because they cost as much as a layer; compiled code uses one vector with one guard.
        """
        flat = self._flats[name]
        return (lambda: flat.layers(flat.vector)) if self._lazy else (lambda: flat.views)

    def _acting(self, name: str, group: str, *others: str) -> Callable[..., Any]:
        """Return a function of the page that acts, compiled; not every page has `sample`."""
        function: Any = getattr(self._page, name, None)
        read, settings, more = self._reader(group), self._settings, [self._reader(other) for other in others]
        return self._compile(lambda *arrays: function(*arrays, settings, read(), *[reader() for reader in more]))

    def _program(self, step: Step) -> Callable[[Tensors, torch.Tensor], tuple[torch.Tensor, ...]]:
        """Return the update of a step from a batch and the optimiser's numbers: one graph, or two with the averaging between."""
        flat, optimizer, settings = self._flats[step.group], self._optimizers[step.group], self._settings
        vector, value_of = flat.vector, self._value(step)

        def value(vector: torch.Tensor, batch: Tensors) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
            return value_of(flat.layers(vector), batch)

        # The compiler traces torch.func.grad only; called eagerly it costs a third more than the autograd tape.
        gradient = torch.func.grad(value, has_aux=True) if self._lazy else _tape(value_of, flat.leaves)

        def apply(change: torch.Tensor, numbers: torch.Tensor) -> None:
            with torch.no_grad():
                optimizer.apply(vector, _clipped(change, settings.max_gradient_norm), numbers)

        def whole_update(batch: Tensors, numbers: torch.Tensor) -> tuple[torch.Tensor, ...]:
            change, aux = gradient(vector, batch)
            apply(change, numbers)
            return aux

        # torch's own optimiser classes break the graph by design, so they stay eager.
        whole = settings.defaults == "aligned"
        if self._collective is None and whole:
            return self._compile(whole_update)
        mean = self._compile(gradient)
        if self._collective is not None:
            mean = self._collective.averaged(mean, value=value, vector=vector, compile=self._compile)
        finish = self._compile(apply) if whole else apply

        def update_in_parts(batch: Tensors, numbers: torch.Tensor) -> tuple[torch.Tensor, ...]:
            change, aux = mean(vector, batch)
            finish(change, numbers)
            return aux

        return update_in_parts

    def _value(self, step: Step) -> Callable[[Layers, Tensors], tuple[torch.Tensor, tuple[torch.Tensor, ...]]]:
        """Return the loss of a step, and its aux, as a function of the group's layers and a batch."""
        loss, settings = getattr(self._page, step.loss), self._settings
        readers = [self._reader(name) for name in step.uses]

        def value(layers: Layers, batch: Tensors) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
            result = loss(layers, batch, settings, *[read() for read in readers])
            return result if step.aux else (result, ())

        return value

    def act(self, observations: Observations) -> Actions:
        # Nothing here requires a gradient, and on the CPU nothing moves: a context and two calls less.
        (given,) = self.transfer((observations,))
        actions: torch.Tensor = self._greedy(given)
        return actions.numpy() if self._on_cpu else actions.cpu().numpy()

    def sample(self, observations: Observations, noise: NDArray[np.float32]) -> Arrays:
        return self.read(self._sample(*self.transfer((observations, noise))))

    def transfer(self, batch: Arrays) -> Tensors:
        if self._on_cpu:
            return [torch.from_numpy(array) for array in batch]
        return [torch.from_numpy(array).to(self._device, non_blocking=True) for array in batch]

    def update(self, step: str, batch: Tensors, learning_rate: float) -> tuple[torch.Tensor, ...]:
        update, optimizer = self._updates[step]
        numbers = optimizer.numbers(learning_rate)
        return update(batch, numbers if self._on_cpu else numbers.to(self._device))

    def read(self, aux: Any) -> Arrays:
        return tuple(tensor.detach().cpu().numpy() for tensor in aux)

    def sync(self, target: str, share: float = 1.0) -> None:
        copy, vector = self._flats[target].vector, self._flats[self._targets[target]].vector
        if share == 1.0:
            copy.copy_(vector)
        else:
            copy.lerp_(vector, share)

    def synchronize(self) -> None:
        runtime.synchronize(self._device)

    def compiled(self) -> str:
        return runtime.compiled(self._lazy)

    def peak_memory(self) -> int | None:
        return runtime.peak_memory(self._device)

    def weights(self, name: str) -> Weights:
        return self._flats[name].weights()

    def state(self) -> Weights:
        state: Weights = {}
        for name, flat in self._flats.items():
            state |= checkpoint.nested(name, flat.weights())
        for group, optimizer in self._optimizers.items():
            slots = [slot.detach().cpu().numpy().copy() for slot in optimizer.slots()]
            state |= checkpoint.optimizer_state(group, optimizer.steps, slots)
        return state

    def load_state(self, state: Weights) -> None:
        with torch.no_grad():
            for name, flat in self._flats.items():
                flat.load(checkpoint.part(name, state))
            for group, optimizer in self._optimizers.items():
                steps, slots = checkpoint.optimizer_part(group, state)
                optimizer.restore(steps)
                for slot, array in zip(optimizer.slots(), slots, strict=True):
                    slot.copy_(torch.from_numpy(array))


def _tape(value: Callable[[Layers, Tensors], Any], leaves: Layers) -> Callable[[torch.Tensor, Tensors], Change]:
    """Return the flat gradient of `value` by autograd's tape. Leaves cost less than the backward pass through views of a vector."""

    def gradient(vector: torch.Tensor, batch: Tensors) -> Change:
        objective, aux = value(leaves, batch)
        parts = torch.autograd.grad(objective, leaves)
        return torch.cat([part.flatten() for part in parts]), tuple(array.detach() for array in aux)

    return gradient


def _clipped(change: torch.Tensor, largest: float) -> torch.Tensor:
    """Scale a flat gradient so that its norm is at most `largest` (0: never)."""
    if not largest:
        return change
    return change.mul_(torch.clamp(largest / (torch.linalg.vector_norm(change) + 1e-6), max=1.0))
