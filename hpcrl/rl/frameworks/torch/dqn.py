"""DQN in PyTorch. Lazy mode compiles the whole update (both networks, loss, gradients, clipping, Adam) as one graph."""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hpcrl.errors import UsageError
from hpcrl.rl.learner import Batch, Network, Weights, weight_names

Tensors = list[torch.Tensor]
BETA1, BETA2 = 0.9, 0.999


def forward(weights: Tensors, observations: torch.Tensor) -> torch.Tensor:
    """Return Q values (n, actions); `weights` alternates weight (out, in) and bias (out,)."""
    x = observations
    for layer in range(0, len(weights), 2):
        x = torch.nn.functional.linear(x, weights[layer], weights[layer + 1])
        if layer < len(weights) - 2:
            x = torch.relu(x)
    return x


def dqn_loss(weights: Tensors, target: Tensors, batch: Tensors, gamma: float, kind: str, double: bool) -> torch.Tensor:
    """Return the mean Huber or squared error of Q(s, a); see hpcrl.rl.frameworks.numpy.dqn for the formulae."""
    observations, actions, rewards, following, terminated = batch
    with torch.no_grad():
        values = forward(target, following)
        if double:
            best = values.gather(1, forward(weights, following).argmax(1, keepdim=True)).squeeze(1)
        else:
            best = values.amax(1)
        wanted = rewards + gamma * (1 - terminated) * best
    chosen = forward(weights, observations).gather(1, actions[:, None]).squeeze(1)
    if kind == "huber":
        return torch.nn.functional.huber_loss(chosen, wanted)
    return torch.nn.functional.mse_loss(chosen, wanted)


def _tape_gradient(weights: Tensors, *others: Any) -> tuple[torch.Tensor, ...]:
    leaves = [each.detach().requires_grad_() for each in weights]
    return torch.autograd.grad(dqn_loss(leaves, *others), leaves)


def _check_compiler() -> None:
    compiler = os.environ.get("CXX", "g++")
    header = Path(sysconfig.get_path("include")) / "Python.h"
    missing = [
        what for what, there in ((compiler, shutil.which(compiler)), (str(header), header.exists())) if not there
    ]
    if missing:
        raise UsageError(
            f"torch: lazy mode compiles C++ for the CPU, and there is no {' and no '.join(missing)} here: load a compiler "
            "module, or install g++ and python3-dev"
        )


class TorchDqn:
    """The learner, on the CPU or one GPU."""

    def __init__(
        self,
        network: Network,
        weights: Weights,
        *,
        lazy: bool = False,
        device: str = "cpu",
        gamma: float = 0.99,
        max_gradient_norm: float = 10.0,
        loss: str = "huber",
        double: bool = False,
        adam_epsilon: float = 1e-8,
    ) -> None:
        if device == "cuda" and not torch.cuda.is_available():
            raise UsageError(
                "torch: this cell asks for a GPU, and torch sees none here: it does not run on the CPU instead"
            )
        if lazy and device == "cpu":
            _check_compiler()
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        self._device = torch.device(device)
        self._names = weight_names(network)
        self._online = [torch.tensor(weights[name], dtype=torch.float32, device=self._device) for name in self._names]
        self._target = [each.clone() for each in self._online]
        self._first = [torch.zeros_like(each) for each in self._target]
        self._second = [torch.zeros_like(each) for each in self._target]
        self._steps = 0
        self._lazy = lazy

        # The compiler traces torch.func.grad only; called eagerly it costs a third more than the autograd tape.
        gradient: Callable[..., Iterable[torch.Tensor]] = torch.func.grad(dqn_loss) if lazy else _tape_gradient

        def step(batch: Tensors, rate: torch.Tensor, scale: torch.Tensor) -> None:
            gradients = list(gradient(self._online, self._target, batch, gamma, loss, double))
            with torch.no_grad():
                if max_gradient_norm:
                    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
                    torch._foreach_mul_(gradients, torch.clamp(max_gradient_norm / (norm + 1e-6), max=1.0))
                # Adam: both moments corrected, then epsilon added, as torch.optim.Adam has it.
                torch._foreach_lerp_(self._first, gradients, 1 - BETA1)
                torch._foreach_mul_(self._second, BETA2)
                torch._foreach_addcmul_(self._second, gradients, gradients, 1 - BETA2)
                divisor = torch._foreach_sqrt(self._second)
                torch._foreach_div_(divisor, scale)
                torch._foreach_add_(divisor, adam_epsilon)
                change = torch._foreach_div(self._first, divisor)
                torch._foreach_mul_(change, rate)
                torch._foreach_sub_(self._online, change)

        def greedy(observations: torch.Tensor) -> torch.Tensor:
            return forward(self._online, observations).argmax(1)

        self._step: Any = torch.compile(step, fullgraph=True) if lazy else step
        self._greedy: Any = torch.compile(greedy, fullgraph=True, dynamic=False) if lazy else greedy

    def act(self, observations: NDArray[np.float32]) -> NDArray[np.int64]:
        with torch.inference_mode():
            actions = self._greedy(torch.from_numpy(observations).to(self._device))
        return actions.cpu().numpy()

    def update(self, batch: Batch, learning_rate: float) -> None:
        self._steps += 1
        tensors = [
            torch.from_numpy(each).to(self._device, non_blocking=True)
            for each in (
                batch.observations,
                batch.actions,
                batch.rewards,
                batch.next_observations,
                batch.terminated,
            )
        ]
        # As tensors, so that a new value needs no new compilation.
        rate = torch.tensor(learning_rate / (1 - BETA1**self._steps), dtype=torch.float32, device=self._device)
        scale = torch.tensor((1 - BETA2**self._steps) ** 0.5, dtype=torch.float32, device=self._device)
        self._step(tensors, rate, scale)

    def sync_target(self) -> None:
        with torch.no_grad():
            torch._foreach_copy_(self._target, self._online)

    def synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def compiled(self) -> str:
        if not self._lazy:
            return "nothing: eager"
        from torch._dynamo.utils import counters

        graphs, breaks = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
        return f"torch.compile: {graphs} graphs, {breaks} graph breaks"

    def weights(self) -> Weights:
        return {name: each.detach().cpu().numpy().copy() for name, each in zip(self._names, self._online, strict=True)}

    def state(self) -> Weights:
        state: Weights = {"steps": np.array([self._steps], np.float64)}
        for kind, values in self._parts().items():
            state |= {
                f"{kind}.{name}": each.detach().cpu().numpy() for name, each in zip(self._names, values, strict=True)
            }
        return state

    def load_state(self, state: Weights) -> None:
        self._steps = int(state["steps"][0])
        with torch.no_grad():
            for kind, values in self._parts().items():
                for name, each in zip(self._names, values, strict=True):
                    each.copy_(torch.from_numpy(state[f"{kind}.{name}"]))

    def _parts(self) -> dict[str, Tensors]:
        return {"online": self._online, "target": self._target, "first": self._first, "second": self._second}
