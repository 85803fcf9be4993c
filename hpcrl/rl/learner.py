"""The interface of a learner for the training loop, and the parts that all learners share: the network's shape and initial weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcrl.catalogue.algorithms.dqn import LearnerSettings

Floats = NDArray[np.floating[Any]]
Weights = dict[str, Floats]
# Settings of a DQN learner besides its network.
DqnSettings = LearnerSettings


@dataclass(frozen=True)
class Network:
    """A multi-layer perceptron with ReLU between its layers: `inputs` -> `hidden` ... -> `outputs`.

    With `dueling` the last layer has one more output, the first: the state's value V. The others are advantages
    A, and Q = V + A - mean(A) (Wang et al. 2016, arXiv 1511.06581, equation 9; the streams share every hidden layer).
    """

    inputs: int
    hidden: tuple[int, ...]
    outputs: int
    dueling: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self.inputs, *self.hidden, self.outputs + self.dueling)

    @property
    def layers(self) -> int:
        return len(self.hidden) + 1


@dataclass(frozen=True)
class Batch:
    """Transitions: observations (n, inputs) float32, actions (n,) int64, rewards (n,) float32, next observations
    (n, inputs) float32, terminated (n,) float32, 1.0 where the episode ended by itself (not by truncation)."""

    observations: NDArray[np.float32]
    actions: NDArray[np.int64]
    rewards: NDArray[np.float32]
    next_observations: NDArray[np.float32]
    terminated: NDArray[np.float32]


class Collective(Protocol):
    """How the ranks of a cell average their gradients; `name` names the method."""

    rank: int
    ranks: int
    name: str

    def average(self, vector: Any) -> Any:
        """Return the mean over ranks of the framework's own flat float32 vector."""

    def average_array(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the mean over ranks of a NumPy vector."""

    def close(self) -> None:
        """Leave the group; all ranks must call this together."""


class DqnLearner(Protocol):
    """The framework's part of DQN: networks, loss, update."""

    def act(self, observations: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the greedy actions (n,) for observations (n, inputs)."""

    def transfer(self, batch: Batch) -> Any:
        """Transfer a batch to the framework and its device."""

    def update(self, batch: Any, learning_rate: float) -> None:
        """Take one gradient step on a transferred batch."""

    def sync_target(self) -> None:
        """Copy the online network's weights into the target network."""

    def synchronize(self) -> None:
        """Wait until the device has finished all its work."""

    def compiled(self) -> str:
        """Say what the framework's compiler really did."""

    def peak_memory(self) -> int | None:
        """Return the maximum bytes that the framework's allocator held on the GPU; None if it does not count them."""

    def weights(self) -> Weights:
        """Return the online weights: ``layers.N.weight`` (out, in) and ``layers.N.bias`` (out,)."""

    def state(self) -> Weights:
        """Return everything that a checkpoint needs, as arrays."""

    def load_state(self, state: Weights) -> None:
        """Restore what :meth:`state` returned."""


def initial_weights(network: Network, generator: np.random.Generator) -> dict[str, NDArray[np.float32]]:
    """Draw the initial weights, the same for every framework: uniform in +-1/sqrt(fan_in), weights and biases.

    This is PyTorch's default for linear layers (Kaiming uniform with a = sqrt(5)); the initialiser alone can
    decide whether DQN learns CartPole, so no framework uses its own.
    """
    weights: dict[str, NDArray[np.float32]] = {}
    for layer, (inputs, outputs) in enumerate(zip(network.sizes, network.sizes[1:], strict=False)):
        bound = 1.0 / np.sqrt(inputs)
        weights[f"layers.{layer}.weight"] = generator.uniform(-bound, bound, (outputs, inputs)).astype(np.float32)
        weights[f"layers.{layer}.bias"] = generator.uniform(-bound, bound, outputs).astype(np.float32)
    return weights


def weight_names(network: Network) -> list[str]:
    """Return the names of a network's weights in the order of its layers."""
    return [f"layers.{layer}.{kind}" for layer in range(network.layers) for kind in ("weight", "bias")]
