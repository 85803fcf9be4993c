"""Rainbow (Hessel et al. 2018, arXiv 1710.02298) as data, its memory, and its exploration."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.catalogue.algorithms.rainbow import Settings
from hpcrl.rl.choosing import epsilon_greedy
from hpcrl.rl.interfaces import Actor, Algorithm, Arrays, Choose, ChooseMany, Network, Observations, Space, Step
from hpcrl.rl.replay.nstep import NStepReplay
from hpcrl.rl.runs import Run
from hpcrl.rl.schedules import exploration

# The random stream of a seed for the noise of updates, which is equal on all ranks.
_UPDATES = 6
_MOST_OUTSIDE = 0.01


def algorithm(space: Space, settings: Settings) -> Algorithm:
    """Return Rainbow on this space: one network, and a target copy of it."""
    columns = (space.actions + settings.dueling) * (settings.atoms if settings.distributional else 1)
    noise = settings.noise_scale if settings.noisy else None
    network = Network(space.inputs, settings.hidden, columns, noise=noise)
    return Algorithm(
        name="rainbow",
        space=space,
        settings=settings,
        groups={"online": (network,)},
        targets={"target": "online"},
        steps=(Step("update", "online", ("target",), aux=("loss", "outside")),),
        acts_with="online",
        sync_every=settings.target_interval,
        sync_share=settings.target_share,
        sync_unit=settings.target_unit,
    )


def remarks(settings: Settings, measures: dict[str, float]) -> list[str]:
    """Return what a user should know of a training, one sentence each."""
    if (outside := measures.get("outside", 0.0)) <= _MOST_OUTSIDE:
        return []
    return [
        f"{outside:.1%} of the projected probability lay outside of the support from {settings.value_minimum:g} to "
        f"{settings.value_maximum:g} and was cut off: give value_minimum and value_maximum that hold every discounted return"
    ]


class Noise:
    """Noise vectors: f(x) = sign(x) sqrt(|x|) of standard normal x (Fortunato et al. 2018, arXiv 1706.10295, section 3)."""

    def __init__(self, algorithm: Algorithm, generator: np.random.Generator) -> None:
        ((network,),) = algorithm.groups.values()
        self._size, self.generator = network.noise_size, generator

    def draw(self) -> NDArray[np.float32]:
        """Return a noise vector; without noisy layers one zero, since some frameworks have no empty arrays."""
        if not self._size:
            return np.zeros(1, np.float32)
        values = self.generator.standard_normal(self._size).astype(np.float32)
        scaled: NDArray[np.float32] = np.sign(values) * np.sqrt(np.abs(values))
        return scaled


class Memory(NStepReplay):
    """The replay, whose batches also have the noise of the online and of the target network."""

    def __init__(self, algorithm: Algorithm, capacity: int, seed: int) -> None:
        super().__init__(capacity, algorithm.space.inputs, algorithm.settings)
        self._noise = Noise(algorithm, np.random.default_rng([seed, _UPDATES]))

    def sample(self, count: int, generator: np.random.Generator, step: int = 0) -> Arrays:
        return (*super().sample(count, generator, step), self._noise.draw(), self._noise.draw())

    def facts(self) -> dict[str, Any]:
        return {"noise": self._noise.generator.bit_generator.state}

    def load_facts(self, facts: dict[str, Any]) -> None:
        self._noise.generator.bit_generator.state = facts["noise"]


def memory(algorithm: Algorithm, capacity: int, run: Run) -> Memory:
    """Return the memory of a rank."""
    return Memory(algorithm, capacity, run.seed)


def epsilon(settings: Settings, step: int, episodes: int) -> float:
    """Return the probability of a random action: 0 with noisy layers, which explore by themselves."""
    return 0.0 if settings.noisy else exploration(settings, step, episodes)


def chooser(algorithm: Algorithm, actor: Actor, draw: np.random.Generator, switch: Callable[[str], None]) -> Choose:
    """Return the choice: greedy with new noise, or epsilon-greedy."""
    actions, settings = algorithm.space.actions, algorithm.settings
    noise = Noise(algorithm, draw)

    def choose(observation: NDArray[np.float32], step: int, episodes: int) -> int:
        if draw.random() < epsilon(settings, step, episodes):
            return int(draw.integers(actions))
        switch("act")
        return int(actor.sample(observation.reshape(1, -1), noise.draw())[0][0])

    return choose


def many_chooser(
    algorithm: Algorithm, actor: Actor, draw: np.random.Generator, switch: Callable[[str], None]
) -> ChooseMany:
    """Return the choice for several environments. All of them act with the same noise, which is new at each step."""
    noise = Noise(algorithm, draw)

    def greedy(observations: Observations) -> NDArray[np.int64]:
        switch("act")
        return actor.sample(observations, noise.draw())[0]

    return epsilon_greedy(draw, algorithm.space.actions, partial(epsilon, algorithm.settings, episodes=0), greedy)
