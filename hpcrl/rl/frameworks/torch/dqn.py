"""DQN in PyTorch. Lazy mode compiles the whole update (both networks, loss, gradients, clipping, optimiser) as one graph.

All weights are views of one flat vector, so clipping, optimiser and averaging need few operations, also in eager mode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hpcrl.rl import checkpoint
from hpcrl.rl.frameworks.torch import optimizers, runtime
from hpcrl.rl.learner import Batch, Collective, DqnSettings, Network, Weights, weight_names

Tensors = list[torch.Tensor]


def q_values(weights: Tensors, observations: torch.Tensor, dueling: bool) -> torch.Tensor:
    """Return Q (n, actions); `weights` alternates weight (out, in) and bias (out,)."""
    x = observations
    for layer in range(0, len(weights), 2):
        x = torch.nn.functional.linear(x, weights[layer], weights[layer + 1])
        if layer < len(weights) - 2:
            x = torch.relu(x)
    return combine(x) if dueling else x


def combine(output: torch.Tensor) -> torch.Tensor:
    """Return Q (n, actions) of value and advantages (n, 1 + actions): Q = V + A - mean(A)."""
    advantages = output[:, 1:]
    return output[:, :1] + advantages - advantages.mean(1, keepdim=True)


def dqn_loss(
    weights: Tensors, target: Tensors, batch: Tensors, gamma: float, kind: str, double: bool, dueling: bool = False
) -> torch.Tensor:
    """Return the mean Huber or squared error of Q(s, a); see hpcrl.rl.frameworks.numpy.dqn for the formulae."""
    observations, actions, rewards, following, terminated = batch
    with torch.no_grad():
        values = q_values(target, following, dueling)
        if double:
            best = values.gather(1, q_values(weights, following, dueling).argmax(1, keepdim=True)).squeeze(1)
        else:
            best = values.amax(1)
        wanted = rewards + gamma * (1 - terminated) * best
    chosen = q_values(weights, observations, dueling).gather(1, actions[:, None]).squeeze(1)
    if kind == "huber":
        return torch.nn.functional.huber_loss(chosen, wanted)
    return torch.nn.functional.mse_loss(chosen, wanted)


def framework_weights(network: Network, seed: int) -> Weights:
    """Draw initial weights as torch.nn.Linear does."""
    torch.manual_seed(seed)
    weights: Weights = {}
    for layer, (inputs, outputs) in enumerate(zip(network.sizes, network.sizes[1:], strict=False)):
        linear = torch.nn.Linear(inputs, outputs)
        weights[f"layers.{layer}.weight"] = linear.weight.detach().numpy().copy()
        weights[f"layers.{layer}.bias"] = linear.bias.detach().numpy().copy()
    return weights


class _Loss(torch.nn.Module):
    """The loss as a module with one flat parameter, for DistributedDataParallel."""

    def __init__(self, flat: torch.Tensor, loss: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.flat = torch.nn.Parameter(flat)  # the same storage
        self._loss = loss

    def forward(self, batch: Tensors) -> torch.Tensor:
        return self._loss(self.flat, batch)


class Learner:
    """The learner, on the CPU or one GPU."""

    def __init__(
        self,
        network: Network,
        weights: Weights,
        settings: DqnSettings,
        execution: str = "eager",
        device: str = "cpu",
        collective: Collective | None = None,
    ) -> None:
        self._lazy = execution == "lazy"
        self._device = runtime.check_device(device, self._lazy)
        self._names = weight_names(network)
        shapes = [weights[name].shape for name in self._names]
        counts = [int(np.prod(shape)) for shape in shapes]
        flat = np.concatenate([weights[name].ravel() for name in self._names]).astype(np.float32)
        self._online = torch.from_numpy(flat).to(self._device)
        self._target = self._online.clone()
        self._optimizer = optimizers.make(self._online, settings)
        maybe_compile = runtime.compiler(self._lazy)
        dueling = network.dueling

        def layers(flat: torch.Tensor) -> Tensors:
            return [part.view(shape) for part, shape in zip(flat.split(counts), shapes, strict=True)]

        self._layers = layers

        def current(flat: torch.Tensor) -> Callable[[], Tensors]:
            """Eager code uses views that are made once, because they cost as much as a layer; compiled code uses one vector with one guard."""
            views = layers(flat)
            return (lambda: layers(flat)) if self._lazy else (lambda: views)

        online, target = current(self._online), current(self._target)

        def loss(flat: torch.Tensor, batch: Tensors) -> torch.Tensor:
            return dqn_loss(layers(flat), target(), batch, settings.gamma, settings.loss, settings.double, dueling)

        def tape_gradient(flat: torch.Tensor, batch: Tensors) -> torch.Tensor:
            leaf = flat.detach().requires_grad_()
            return torch.autograd.grad(loss(leaf, batch), leaf)[0]

        # The compiler traces torch.func.grad only; called eagerly it costs a third more than the autograd tape.
        gradient: Callable[..., torch.Tensor] = torch.func.grad(loss) if self._lazy else tape_gradient

        def apply(change: torch.Tensor, numbers: torch.Tensor) -> None:
            with torch.no_grad():
                if settings.max_gradient_norm:
                    norm = torch.linalg.vector_norm(change)
                    change = change * torch.clamp(settings.max_gradient_norm / (norm + 1e-6), max=1.0)
                self._optimizer.apply(self._online, change, numbers)

        def step(batch: Tensors, numbers: torch.Tensor) -> None:
            apply(gradient(self._online, batch), numbers)

        # torch's own optimiser classes break the graph by design, so they stay eager.
        whole = settings.defaults == "aligned"
        if collective is None and whole:
            self._step: Any = maybe_compile(step)
        else:
            change = self._change(collective, loss, maybe_compile(gradient), maybe_compile)
            second = maybe_compile(apply) if whole else apply
            self._step = lambda batch, numbers: second(change(batch), numbers)

        def greedy(observations: torch.Tensor) -> torch.Tensor:
            return q_values(online(), observations, dueling).argmax(1)

        self._greedy: Any = maybe_compile(greedy)

    def _change(
        self, collective: Collective | None, loss: Any, gradient: Any, maybe_compile: Any
    ) -> Callable[[Tensors], torch.Tensor]:
        """Return the function that computes the gradient of the whole cell's batch from this rank's part of it."""
        if collective is None:
            return lambda batch: gradient(self._online, batch)
        if not hasattr(collective, "wrap"):
            return lambda batch: collective.average(gradient(self._online, batch))
        module = _Loss(self._online, loss)
        wrapped = collective.wrap(maybe_compile(module))

        def average(batch: Tensors) -> torch.Tensor:
            module.flat.grad = None
            wrapped(batch).backward()
            assert module.flat.grad is not None
            return module.flat.grad

        return average

    def act(self, observations: NDArray[np.float32]) -> NDArray[np.int64]:
        with torch.inference_mode():
            actions = self._greedy(torch.from_numpy(observations).to(self._device))
        return actions.cpu().numpy()

    def transfer(self, batch: Batch) -> Tensors:
        arrays = (batch.observations, batch.actions, batch.rewards, batch.next_observations, batch.terminated)
        return [torch.from_numpy(each).to(self._device, non_blocking=True) for each in arrays]

    def update(self, batch: Tensors, learning_rate: float) -> None:
        self._step(batch, self._optimizer.numbers(learning_rate).to(self._device))

    def sync_target(self) -> None:
        self._target.copy_(self._online)

    def synchronize(self) -> None:
        runtime.synchronize(self._device)

    def compiled(self) -> str:
        return runtime.compiled(self._lazy)

    def peak_memory(self) -> int | None:
        return runtime.peak_memory(self._device)

    def weights(self) -> Weights:
        return self._named(self._online)

    def _named(self, flat: torch.Tensor) -> Weights:
        arrays = (each.detach().cpu().numpy().copy() for each in self._layers(flat))
        return dict(zip(self._names, arrays, strict=True))

    def state(self) -> Weights:
        state: Weights = {"steps": np.array([self._optimizer.steps], np.float64)}
        for kind, flat in self._parts().items():
            state |= checkpoint.nested(kind, self._named(flat))
        return state

    def load_state(self, state: Weights) -> None:
        self._optimizer.restore(int(state["steps"][0]))
        with torch.no_grad():
            for kind, flat in self._parts().items():
                arrays = checkpoint.part(kind, state)
                flat.copy_(torch.from_numpy(np.concatenate([arrays[name].ravel() for name in self._names])))

    def _parts(self) -> dict[str, torch.Tensor]:
        return {"online": self._online, "target": self._target, **self._optimizer.slots()}
