"""The aligned optimisers on one flat vector (formulae: hpcrl.rl.specification.optimizers), and PyTorch's own.

`numbers` runs on the host and returns the values that change at every step as a tensor, so that a compiled `apply` is
not compiled again for a new value.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.adam import adam

from hpcrl.catalogue.training import OptimizerSettings
from hpcrl.rl.specification.optimizers import BETA1, BETA2


class Adam:
    """torch.optim.Adam's formula with hpcrl's epsilon."""

    def __init__(self, flat: torch.Tensor, settings: OptimizerSettings) -> None:
        self.steps = 0
        self._epsilon = settings.optimizer_epsilon
        self._first, self._second = torch.zeros_like(flat), torch.zeros_like(flat)

    def numbers(self, learning_rate: float) -> torch.Tensor:
        self.steps += 1
        rate = learning_rate / (1 - BETA1**self.steps)
        scale = (1 - BETA2**self.steps) ** 0.5
        return torch.tensor([rate, scale], dtype=torch.float32)

    def apply(self, flat: torch.Tensor, gradient: torch.Tensor, numbers: torch.Tensor) -> None:
        self._first.lerp_(gradient, 1 - BETA1)
        self._second.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        divisor = self._second.sqrt().div_(numbers[1]).add_(self._epsilon)
        flat.sub_(self._first.div(divisor).mul_(numbers[0]))

    def slots(self) -> list[torch.Tensor]:
        return [self._first, self._second]

    def restore(self, steps: int) -> None:
        self.steps = steps


class FusedAdam(Adam):
    """The same by PyTorch's fused kernel, for eager mode on the CPU: one pass over the vectors instead of nine."""

    def __init__(self, flat: torch.Tensor, settings: OptimizerSettings) -> None:
        super().__init__(flat, settings)
        self._step = torch.zeros(())

    def numbers(self, learning_rate: float) -> torch.Tensor:
        self.steps += 1
        return torch.tensor(learning_rate)

    def apply(self, flat: torch.Tensor, gradient: torch.Tensor, numbers: torch.Tensor) -> None:
        adam(
            [flat], [gradient], [self._first], [self._second], [], [self._step], fused=True, amsgrad=False, beta1=BETA1,
            beta2=BETA2, lr=numbers, weight_decay=0.0, eps=self._epsilon, maximize=False,
        )  # fmt: skip

    def restore(self, steps: int) -> None:
        super().restore(steps)
        self._step.fill_(steps)


class RmsProp:
    """torch.optim.RMSprop's formula with hpcrl's decay and epsilon."""

    def __init__(self, flat: torch.Tensor, settings: OptimizerSettings) -> None:
        self.steps = 0
        self._epsilon, self._decay = settings.optimizer_epsilon, settings.rmsprop_decay
        self._second = torch.zeros_like(flat)

    def numbers(self, learning_rate: float) -> torch.Tensor:
        self.steps += 1
        return torch.tensor([learning_rate], dtype=torch.float32)

    def apply(self, flat: torch.Tensor, gradient: torch.Tensor, numbers: torch.Tensor) -> None:
        self._second.mul_(self._decay).addcmul_(gradient, gradient, value=1 - self._decay)
        flat.sub_(gradient.div(self._second.sqrt().add_(self._epsilon)).mul_(numbers[0]))

    def slots(self) -> list[torch.Tensor]:
        return [self._second]

    def restore(self, steps: int) -> None:
        self.steps = steps


class Sgd:
    """torch.optim.SGD's formula without momentum."""

    def __init__(self) -> None:
        self.steps = 0

    def numbers(self, learning_rate: float) -> torch.Tensor:
        self.steps += 1
        return torch.tensor([learning_rate], dtype=torch.float32)

    def apply(self, flat: torch.Tensor, gradient: torch.Tensor, numbers: torch.Tensor) -> None:
        flat.sub_(gradient.mul(numbers[0]))

    def slots(self) -> list[torch.Tensor]:
        return []

    def restore(self, steps: int) -> None:
        self.steps = steps


class Own:
    """torch.optim's class, unchanged: its defaults, its kernels. Only the learning rate comes from the study."""

    def __init__(self, flat: torch.Tensor, settings: OptimizerSettings) -> None:
        kinds: dict[str, Any] = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop, "sgd": torch.optim.SGD}
        self._flat = torch.nn.Parameter(flat)  # the same storage
        self._rate = torch.tensor(0.0)
        self._optimizer = kinds[settings.optimizer]([self._flat], lr=self._rate)
        self._flat.grad = torch.zeros_like(flat)
        self._optimizer.step()  # a step on zero gradients makes the slots, and changes nothing
        self.restore(0)

    def numbers(self, learning_rate: float) -> torch.Tensor:
        self.steps += 1
        self._rate.fill_(learning_rate)
        return self._rate

    def apply(self, flat: torch.Tensor, gradient: torch.Tensor, numbers: torch.Tensor) -> None:
        assert self._flat.grad is not None
        self._flat.grad.copy_(gradient)
        self._optimizer.step()

    def slots(self) -> list[torch.Tensor]:
        state = self._optimizer.state[self._flat]
        return [value for value in state.values() if value is not None and value.shape == self._flat.shape]

    def restore(self, steps: int) -> None:
        self.steps = steps
        if "step" in (state := self._optimizer.state[self._flat]):  # SGD counts none
            state["step"].fill_(steps)


def make(flat: torch.Tensor, settings: OptimizerSettings, lazy: bool) -> Adam | RmsProp | Sgd | Own:
    """Return the optimiser of the settings, for weights that it changes in place."""
    if settings.defaults == "framework":
        return Own(flat, settings)
    if settings.optimizer == "rmsprop":
        return RmsProp(flat, settings)
    if settings.optimizer == "sgd":
        return Sgd()
    fused = not lazy and flat.device.type == "cpu"  # not run on a GPU
    return FusedAdam(flat, settings) if fused else Adam(flat, settings)
