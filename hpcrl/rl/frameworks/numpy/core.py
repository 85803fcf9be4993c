"""The NumPy learner: it applies the specification's gradients. In float64 it is the reference of the parity tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.errors import UsageError
from hpcrl.rl import checkpoint
from hpcrl.rl.interfaces import Actions, Algorithm, Arrays, Observations, Step, Weights
from hpcrl.rl.specification import optimizers

# Where the pages of algorithms are, instead of in this package.
PAGES = "hpcrl.rl.specification"


class Learner:
    """The learner; `page` is the algorithm's module of hpcrl.rl.specification, `dtype` float32 or float64."""

    burst = None

    def __init__(
        self,
        algorithm: Algorithm,
        page: Any,
        weights: dict[str, Weights],
        execution: str = "eager",
        device: str = "cpu",
        collective: object | None = None,
        dtype: type[np.floating[Any]] = np.float32,
    ) -> None:
        if device != "cpu" or collective is not None:
            raise UsageError("numpy: expected one rank on the CPU: it has no parallelism and no GPU")
        settings = algorithm.settings
        self._targets, self._settings = algorithm.targets, settings
        self._weights = {
            name: {key: array.astype(dtype) for key, array in weights[group].items()}
            for name, group in algorithm.origins.items()
        }
        self._optimizers = {name: optimizers.make(self._weights[name], settings) for name in algorithm.groups}
        acting = self._weights[algorithm.acts_with]
        others = [self._weights[name] for name in algorithm.samples_with]
        self._greedy = lambda observations: page.greedy(observations, settings, acting)
        self._sample = lambda observations, noise: page.sample(observations, noise, settings, acting, *others)
        self._updates = {step.name: self._program(step, page) for step in algorithm.steps}

    def _program(self, step: Step, page: Any) -> Any:
        loss_and_gradient, settings = getattr(page, f"{step.loss}_and_gradient"), self._settings
        optimizer, weights = self._optimizers[step.group], self._weights[step.group]
        constants = [self._weights[name] for name in step.uses]

        def whole_update(batch: Arrays, learning_rate: float) -> Arrays:
            _, gradient, aux = loss_and_gradient(weights, batch, settings, *constants)
            optimizer.apply(weights, optimizers.clip(gradient, settings.max_gradient_norm), learning_rate)
            return tuple(aux)

        return whole_update

    def act(self, observations: Observations) -> Actions:
        actions: Actions = self._greedy(observations)
        return actions

    def sample(self, observations: Observations, noise: NDArray[np.float32]) -> Arrays:
        return tuple(self._sample(observations, noise))

    def transfer(self, batch: Arrays) -> Arrays:
        return batch

    def update(self, step: str, batch: Arrays, learning_rate: float) -> Arrays:
        aux: Arrays = self._updates[step](batch, learning_rate)
        return aux

    def read(self, aux: Any) -> Arrays:
        return tuple(np.asarray(array) for array in aux)

    def sync(self, target: str, share: float = 1.0) -> None:
        copy = self._weights[target]
        for name, array in self._weights[self._targets[target]].items():
            if share == 1.0:
                copy[name][...] = array
            else:
                copy[name] += array.dtype.type(share) * (array - copy[name])

    def synchronize(self) -> None:
        """Do nothing: NumPy is synchronous."""

    def compiled(self) -> str:
        return "nothing: NumPy compiles nothing"

    def peak_memory(self) -> int | None:
        return None

    def weights(self, name: str) -> Weights:
        return {key: array.copy() for key, array in self._weights[name].items()}

    def state(self) -> Weights:
        state: Weights = {}
        for name, weights in self._weights.items():
            state |= checkpoint.nested(name, weights)
        for group, optimizer in self._optimizers.items():
            state |= checkpoint.optimizer_state(group, optimizer.steps, optimizer.slots())
        return state

    def load_state(self, state: Weights) -> None:
        for name, weights in self._weights.items():
            for key, array in checkpoint.part(name, state).items():
                weights[key][...] = array
        for group, optimizer in self._optimizers.items():
            optimizer.steps, slots = checkpoint.optimizer_part(group, state)
            for slot, array in zip(optimizer.slots(), slots, strict=True):
                slot[...] = array
