"""What algorithms, learners and loops know of each other: data and protocols. Needs NumPy only.

An algorithm is data: groups of weights, target copies of them, and gradient steps. A learner (one class per framework)
computes what the data say with the loss functions of the algorithm's page. A loop takes environment steps and asks for
updates. Every random number is handed in, so that losses are deterministic and equal in all frameworks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcrl.catalogue.images import KERNELS, convolved, side_of

Floats = NDArray[np.floating[Any]]
Weights = dict[str, Floats]
# A batch: the arrays that the loss of a step unpacks, in that order.
Arrays = tuple[NDArray[Any], ...]
# Observations (n, inputs), or one (inputs,), of the space's dtype: float32, or uint8 for images.
Observations = NDArray[Any]
# Actions of the space's action_dtype: (n,) int64, or (n, actions) float32 where they are continuous.
Actions = NDArray[Any]
# One action: a whole number, or real ones (actions,) float32.
Action = int | NDArray[np.float32]
# Greedy actions for observations (n, inputs).
Act = Callable[[Observations], Actions]
# The action to explore with, from an observation (inputs,), the environment step, and this explorer's ended episodes.
Choose = Callable[[Observations, int, int], Action]
# The actions (n,) to explore with, from observations (n, inputs) and the environment step.
ChooseMany = Callable[[Observations, int], NDArray[np.int64]]


@dataclass(frozen=True)
class Space:
    """An environment with observations (inputs,), actions 0 to actions - 1, and episodes of at most `limit` steps (None: unknown).

    With `channels` an observation is a square image (side, side, channels), flat in that order. With `bounds`, an action is a vector of
    `actions` real numbers, and these are the lowest and the highest value of each; infinite ones are possible.
    """

    inputs: int
    actions: int
    channels: int = 0
    limit: int | None = None
    bounds: tuple[tuple[float, float], ...] = ()

    @property
    def continuous(self) -> bool:
        """Tell whether actions are real numbers."""
        return bool(self.bounds)

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Return the shape of one action."""
        return (self.actions,) if self.continuous else ()

    @property
    def action_dtype(self) -> type[np.generic]:
        """Return the type of actions."""
        return np.float32 if self.continuous else np.int64

    @property
    def kind(self) -> str:
        """Return ``vector`` or ``image``."""
        return "image" if self.channels else "vector"

    @property
    def dtype(self) -> type[np.generic]:
        """Return the type of observations."""
        return np.uint8 if self.channels else np.float32


@dataclass(frozen=True)
class Network:
    """The shape of a multi-layer perceptron: `inputs` -> `hidden` ... -> `outputs`. `name` tells the networks of a group apart.

    With `filters`, `inputs` are a square image of that many `channels`, and convolutions come first: one for each number of filters.
    Their result (side, side, filters) is flat in that order for the next layer, as the image is. Initial weights are uniform as PyTorch's, or with `gain` orthogonal: sqrt(2) in hidden layers, `gain` in the last. With
    `noise`, all layers but the first also have scales of noise, which begin at `noise` / sqrt(inputs of the layer). With `log_std`, a last
    array ``log_std`` (outputs,) has the logarithms of the outputs' standard deviations, which begin at that value.
    """

    inputs: int
    hidden: tuple[int, ...]
    outputs: int
    name: str = ""
    gain: float | None = None
    noise: float | None = None
    channels: int = 0
    filters: tuple[int, ...] = ()
    log_std: float | None = None

    @property
    def noise_size(self) -> int:
        """Return the length of a noise vector: the inputs and outputs of each noisy layer."""
        return sum(sum(shape) for shape in self.shapes[1:]) if self.noise is not None else 0

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shape of each layer's weight: (out, in, kernel, kernel) of convolutions, then (out, in)."""
        inputs, before, shapes = self.inputs, self.channels, []
        if self.filters:
            side = side_of(inputs, before)
            for count, kernel in zip(self.filters, KERNELS, strict=False):
                shapes.append((count, before, kernel, kernel))
                before, side = count, convolved(side, kernel)
            inputs = before * side**2
        return [*shapes, *((after, given) for given, after in pairwise((inputs, *self.hidden, self.outputs)))]


@dataclass(frozen=True)
class Step:
    """A gradient step: it changes the weights of `group`; the loss reads those of `uses` as constants.

    `loss` is the name of its function on the algorithm's page. `aux` names the arrays that the loss also returns, the first
    of them priorities for a memory that wants some. The learning rate is that of the setting `rate`, which goes linearly to that of
    ``final_`` `rate`. Off-policy loops take the step at every `every`-th update, counted over the training. On-policy loops take it
    `times` times on each batch.
    """

    name: str
    group: str
    uses: tuple[str, ...] = ()
    loss: str = "loss"
    aux: tuple[str, ...] = ()
    every: int = 1
    times: int = 1
    rate: str = "learning_rate"


@dataclass(frozen=True)
class Algorithm:
    """An algorithm on a space as data; `name` is that of the catalogue and of its pages, `settings` the catalogue's Settings.

    `groups` are drawn in their order. `targets` maps a copy to the group that it follows: every `sync_every` environment
    steps, or updates (`sync_unit`), the copy moves by `sync_share` of the way. A `sync_unit` that is the name of a gradient step moves it
    after each of these. Acting reads the group `acts_with`,
    and sampling also the groups `samples_with`.
    """

    name: str
    space: Space
    settings: Any
    groups: Mapping[str, tuple[Network, ...]]
    targets: Mapping[str, str]
    steps: tuple[Step, ...]
    acts_with: str
    sync_every: int = 0
    sync_share: float = 1.0
    sync_unit: str = "steps"
    samples_with: tuple[str, ...] = ()

    @property
    def has_one_step(self) -> bool:
        """Tell whether every update is the same gradient step."""
        return len(self.steps) == 1 and self.steps[0].every == 1

    @property
    def origins(self) -> dict[str, str]:
        """Map each group and each target copy to the group whose initial weights it has."""
        return {group: group for group in self.groups} | dict(self.targets)


class Learner(Protocol):
    """The framework's part of a training: weights, gradients, optimiser, compiler, device.

    `burst`(step, batches, learning rate) takes the gradient steps of transferred batches that are stacked, arrays (k, n, ...),
    in one program, and returns their aux, stacked; None if this learner has no such program.
    """

    @property
    def burst(self) -> Callable[[str, Any, float], Any] | None: ...

    def act(self, observations: Observations) -> Actions:
        """Return the greedy actions of observations (n, inputs). The next call may write over what it returned."""

    def sample(self, observations: Observations, noise: NDArray[np.float32]) -> Arrays:
        """Return what `sample` of the algorithm's page returns: sampled actions, and for an on-policy algorithm their
        log-probabilities (n,) and values (n,). The page says what noise it takes. The next call may write over what it returned."""

    def transfer(self, batch: Arrays) -> Any:
        """Transfer a batch to the framework and its device. The next call may write over it."""

    def update(self, step: str, batch: Any, learning_rate: float) -> Any:
        """Take one gradient step on a transferred batch; return the loss function's aux, still on the device. The next call may write over it."""

    def read(self, aux: Any) -> Arrays:
        """Return the aux of an update as arrays."""

    def sync(self, target: str, share: float = 1.0) -> None:
        """Move a target copy by `share` of the way to its group: 1 copies."""

    def synchronize(self) -> None:
        """Wait until the device has finished all its work."""

    def compiled(self) -> str:
        """Say what the framework's compiler really did."""

    def peak_memory(self) -> int | None:
        """Return the maximum bytes that the framework's allocator held on the GPU; None if it does not count them."""

    def weights(self, name: str) -> Weights:
        """Return a copy of a group's or a target's weights: ``layers.N.weight`` (out, in) and ``layers.N.bias`` (out,).

        A convolution's weight is (out, in, kernel, kernel).
        """

    def state(self) -> Weights:
        """Return everything that a checkpoint needs, as arrays."""

    def load_state(self, state: Weights) -> None:
        """Restore what :meth:`state` returned."""


class Actor(Protocol):
    """Chooses greedy actions for a loop, and samples actions as a learner does."""

    @property
    def act(self) -> Act: ...

    @property
    def sample(self) -> Callable[[NDArray[np.float32], NDArray[np.float32]], Arrays]: ...

    def refresh(self) -> None:
        """Take over the learner's current weights, if this is not the learner itself."""


class Memory(Protocol):
    """The replay of an off-policy loop; it makes the batches of the algorithm's losses.

    With `prioritized` it wants to know the losses. It draws from `size` entries.
    """

    prioritized: bool
    size: int

    def add(
        self,
        observation: Observations,
        action: Action,
        reward: float,
        following: Observations,
        terminated: bool,
        ended: bool,
        stream: int = 0,
    ) -> None:
        """Store a transition; `ended`: terminated or truncated. Those of one `stream` follow each other."""

    def add_block(
        self,
        observations: Observations,
        actions: Actions,
        rewards: NDArray[np.floating[Any]],
        following: Observations,
        terminated: NDArray[np.bool_],
        ended: NDArray[np.bool_],
        stream: int,
    ) -> None:
        """Store transitions (n, ...) of one stream, in their order: the same as that many calls of :meth:`add`."""

    def sample(self, count: int, generator: np.random.Generator, step: int = 0) -> Arrays:
        """Draw a batch at an environment step."""

    def sample_many(self, batches: int, count: int, generator: np.random.Generator, step: int = 0) -> Arrays:
        """Draw batches, stacked: the same as from that many calls of :meth:`sample`."""

    def prioritize(self, losses: NDArray[np.float32]) -> None:
        """Take the losses (n,) of the batch that was drawn last, which are its first aux, as priorities."""

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the arrays for a checkpoint."""

    def load_state(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state` returned."""

    def facts(self) -> dict[str, Any]:
        """Return plain facts for a checkpoint: random streams."""

    def load_facts(self, facts: dict[str, Any]) -> None:
        """Restore what :meth:`facts` returned."""


class VectorEnvironment(Protocol):
    """Several environments that step together. An environment whose episode ends is reset in the same step."""

    count: int

    def reset(self, seeds: Sequence[int]) -> NDArray[np.float32]:
        """Start an episode in each environment; return the observations (n, inputs)."""

    def step(self, actions: Actions) -> Transitions:
        """Take a step in each environment."""

    def close(self) -> None:
        """End processes, if there are any."""


class Transitions(NamedTuple):
    """A step of n environments: `observations` (n, inputs) to act on next, rewards (n,), whether an episode terminated (n,),
    whether it ended (n,), terminated or truncated, and the observations (n, inputs) that the step itself led to: where an
    episode ended, these are its last ones."""

    observations: NDArray[np.float32]
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    ended: NDArray[np.bool_]
    last: NDArray[np.float32]


class Loop(Protocol):
    """Takes environment steps and updates; one class per family of algorithms and per way to run it."""

    step: int
    episodes: int

    def measures(self) -> dict[str, float]:
        """Return the mean over the intervals so far of what the loss also returns, by name."""

    def advance(self, until: int, stop: Callable[[], bool]) -> bool:
        """Continue to step `until`; False if `stop` ended it earlier."""

    def act(self, observations: Observations) -> Actions:
        """Return greedy actions."""

    def moments(self) -> Any:
        """Return the moments of observations (hpcrl.rl.normalization) by which `act` sees them now; None: it sees them as they are."""

    def close(self) -> None:
        """End processes, if there are any."""

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return arrays and plain facts for a checkpoint, without the learner's."""

    def load_state(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
