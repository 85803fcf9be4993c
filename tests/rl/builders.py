"""What the tests of learners and loops have in common: a batch of DQN, learners, ranks that do not exist, reports that are kept."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcrl.catalogue.algorithms.dqn import Settings
from hpcrl.rl.distributed.collective import Collective
from hpcrl.rl.distributed.group import Group
from hpcrl.rl.frameworks import make_learner
from hpcrl.rl.frameworks.numpy.core import Learner as NumpyLearner
from hpcrl.rl.interfaces import Algorithm, Learner, Space, Weights
from hpcrl.rl.weights import initial_weights
from hpcrl.telemetry.phases import PhaseClock

CARTPOLE = Space(4, 2)
Observation = NDArray[np.float32]


class Batch(NamedTuple):
    """A batch of DQN by names."""

    observations: NDArray[np.float32]
    actions: NDArray[np.int64]
    rewards: NDArray[np.float32]
    next_observations: NDArray[np.float32]
    terminated: NDArray[np.float32]


def batch(draw: np.random.Generator, count: int = 128, inputs: int = 4, terminal: float = 0.1) -> Batch:
    return Batch(
        draw.normal(size=(count, inputs)).astype(np.float32),
        draw.integers(0, 2, count),
        (3 * draw.normal(size=count)).astype(np.float32),
        draw.normal(size=(count, inputs)).astype(np.float32),
        (draw.random(count) < terminal).astype(np.float32),
    )


def made_of(name: str, settings: Any, space: Space = CARTPOLE) -> Algorithm:
    made: Algorithm = importlib.import_module(f"hpcrl.rl.algorithms.{name}").algorithm(space, settings)
    return made


def dqn(settings: Settings | None = None, space: Space = CARTPOLE) -> Algorithm:
    return made_of("dqn", settings or Settings(hidden=(120, 84)), space)


def first_weights(made: Algorithm, draw: np.random.Generator | None = None) -> dict[str, Weights]:
    return initial_weights(made, draw or np.random.default_rng(0))


def exact(made: Algorithm, weights: dict[str, Weights]) -> NumpyLearner:
    """Return the specification in float64."""
    page = importlib.import_module(f"hpcrl.rl.specification.{made.name}")
    return NumpyLearner(made, page, weights, dtype=np.float64)


def learner_of(
    framework: str, execution: str, made: Algorithm, weights: dict[str, Weights], collective: Collective | None = None
) -> Learner:
    return make_learner(framework, execution, made, weights, collective=collective)


def fresh(framework: str) -> None:
    """Forget what torch compiled: it keeps few programs for one function, and a cell has one learner."""
    if framework == "torch":
        import torch

        torch._dynamo.reset()


class Rank(Collective):
    """One of several ranks, without the others: a mean is then its own value."""

    def __init__(self, rank: int = 0, ranks: int = 2, clock: PhaseClock | None = None) -> None:
        super().__init__(Group(rank, ranks), "nobody", clock or PhaseClock())

    def mean(self, vector: Any) -> Any:
        return vector

    def mean_array(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        return values


class Counter:
    """Shows how many steps an episode has had; a reward of 1 a step; ends by itself, or is cut off, after `most`.

    It keeps the seeds of its resets and the actions that were taken.
    """

    def __init__(self, most: int = 4, cut: bool = False) -> None:
        self.observation_space, self.action_space = SimpleNamespace(shape=(1,)), SimpleNamespace(n=2)
        self.spec = None
        self._most, self._cut, self._taken = most, cut, 0
        self.seeds: list[int | None] = []
        self.actions: list[int] = []

    def reset(self, seed: int | None = None) -> tuple[Observation, dict[str, Any]]:
        self.seeds.append(seed)
        self._taken = 0
        return self._shown(), {}

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self.actions.append(action)
        self._taken += 1
        over = self._taken == self._most
        return self._shown(), 1.0, over and not self._cut, over and self._cut, {}

    def _shown(self) -> Observation:
        return np.array([self._taken], np.float32)


class Dial(Counter):
    """Takes `numbers` from `low` to `high`; shows how many steps an episode has had, or with `blind` nothing."""

    def __init__(
        self, most: int = 2, cut: bool = False, numbers: int = 1, low: float = -1, high: float = 1, blind: bool = False
    ) -> None:
        super().__init__(most, cut)
        self._blind = blind
        self.action_space = SimpleNamespace(
            shape=(numbers,), dtype=np.dtype(np.float32), low=[low] * numbers, high=[high] * numbers
        )

    def _shown(self) -> Observation:
        return np.zeros(1, np.float32) if self._blind else super()._shown()


class Target:
    """Episodes of one step; the reward is less the further an action is from 0.7 and -0.4."""

    spec = None
    observation_space = SimpleNamespace(shape=(1,))
    action_space = SimpleNamespace(shape=(2,), dtype=np.dtype(np.float32), low=[-1, -1], high=[1, 1])

    def reset(self, seed: int | None = None) -> tuple[Observation, dict[str, Any]]:
        return np.zeros(1, np.float32), {}

    def step(self, action: NDArray[np.float32]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), -float(((action - [0.7, -0.4]) ** 2).sum()), True, False, {}


class Brighter:
    """Shows noise, one half of it brighter: a reward of 1 for telling which, the left (0) or the right one (1); episodes of 8 steps."""

    def __init__(self, shape: tuple[int, ...] = (36, 36, 1)) -> None:
        self.observation_space = SimpleNamespace(shape=shape, dtype=np.dtype(np.uint8))
        self.action_space = SimpleNamespace(n=2)
        self._random = np.random.default_rng(0)

    def reset(self, seed: int | None = None) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._taken = 0
        return self._shown(), {}

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        self._taken += 1
        reward = float(action == self._brighter)
        return self._shown(), reward, self._taken == 8, False, {}

    def _shown(self) -> NDArray[np.uint8]:
        height, width, channels = self.observation_space.shape
        image = self._random.integers(0, 100, (height, width, channels), np.uint8)
        self._brighter = int(self._random.integers(2))
        half = slice(width // 2, None) if self._brighter else slice(width // 2)
        image[:, half] += 100
        return image


class Reports:
    """Keeps what is reported."""

    def __init__(self) -> None:
        self.episodes: list[tuple[int, float, int]] = []
        self.evaluations: list[tuple[int, float]] = []
        self.confirmations: list[tuple[int, float, bool]] = []
        self.events: list[str] = []

    def episode(self, step: int, value: float, length: int) -> None:
        self.episodes.append((step, value, length))

    def evaluation(self, step: int, value: float) -> None:
        self.evaluations.append((step, value))

    def confirmation(self, step: int, value: float, reached: bool) -> None:
        self.confirmations.append((step, value, reached))

    def progress(self, step: int, total: int) -> None: ...

    def event(self, text: str) -> None:
        self.events.append(text)

    def spent(self) -> dict[str, float | None]:
        return {"training_time": float(len(self.episodes))}

    def resumed(self, step: int, spent: dict[str, float | None]) -> None:
        self.took_up = step, spent
