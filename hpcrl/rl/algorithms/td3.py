"""TD3 (Fujimoto et al. 2018, arXiv 1802.09477) as data, its memory, and its exploration. Actions are from -1 to 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.catalogue.algorithms.td3 import Settings
from hpcrl.rl.interfaces import Actor, Algorithm, Arrays, Choose, Network, Observations, Space, Step
from hpcrl.rl.replay.uniform import Replay
from hpcrl.rl.runs import Run

# The random stream of a seed for the noise of the target policy; each rank has its own.
_SMOOTHING = 6


def algorithm(space: Space, settings: Settings) -> Algorithm:
    """Return TD3 on this space: a policy, two critics as one group, and target copies of all of them.

    The policy learns at every `policy_delay`-th update of the critics, and all copies follow after it.
    """
    actor = Network(space.inputs, settings.hidden, space.actions)
    critics = tuple(Network(space.inputs + space.actions, settings.hidden, 1, name) for name in ("critic1", "critic2"))
    targets = {"target_actor": "actor", "target_critics": "critics"}
    return Algorithm(
        name="td3",
        space=space,
        settings=settings,
        groups={"actor": (actor,), "critics": critics},
        targets=targets,
        steps=(
            Step("critic", "critics", tuple(targets), "critic_loss", rate="value_learning_rate"),
            Step("actor", "actor", ("critics",), "actor_loss", every=settings.policy_delay),
        ),
        acts_with="actor",
        sync_share=settings.target_share,
        sync_unit="actor",
    )


class Memory(Replay):
    """The replay, whose batches also have the noise (n, actions) of the target policy, before it is scaled and clipped."""

    def __init__(self, algorithm: Algorithm, capacity: int, run: Run) -> None:
        space, settings = algorithm.space, algorithm.settings
        super().__init__(capacity, space.inputs, space.dtype, space.actions)
        self._width = space.actions
        self._noise = np.random.default_rng([run.seed, _SMOOTHING, *([run.rank] if run.rank else [])])
        self._draw: Callable[..., NDArray[np.float64]] = (
            self._noise.standard_normal if settings.target_noise_kind == "normal" else self._noise.random
        )
        self._shares, self._interval = settings.shared_noise, -1

    def sample(self, count: int, generator: np.random.Generator, step: int = 0) -> Arrays:
        if not self._shares or step != self._interval:
            self._last, self._interval = self._drawn_noise(count), step
        return (*super().sample(count, generator, step), self._last)

    def sample_many(self, batches: int, count: int, generator: np.random.Generator, step: int = 0) -> Arrays:
        if self._shares:
            noise = np.tile(self._drawn_noise(count), (batches, 1, 1))
        else:
            noise = self._drawn_noise(batches, count)
        return (*super().sample_many(batches, count, generator, step), noise)

    def _drawn_noise(self, *counts: int) -> NDArray[np.float32]:
        return self._draw(size=(*counts, self._width)).astype(np.float32)

    def facts(self) -> dict[str, Any]:
        return {"noise": self._noise.bit_generator.state}

    def load_facts(self, facts: dict[str, Any]) -> None:
        self._noise.bit_generator.state = facts["noise"]


def memory(algorithm: Algorithm, capacity: int, run: Run) -> Memory:
    """Return the memory of a rank."""
    return Memory(algorithm, capacity, run)


def chooser(algorithm: Algorithm, actor: Actor, draw: np.random.Generator, switch: Callable[[str], None]) -> Choose:
    """Return the choice: a random action at first, then the policy's with noise, within the bounds."""
    actions, settings, act = algorithm.space.actions, algorithm.settings, actor.act

    def choose(observation: Observations, step: int, episodes: int) -> NDArray[np.float32]:
        if step < settings.random_steps:
            return draw.uniform(-1, 1, actions).astype(np.float32)
        noise = draw.standard_normal(actions)
        switch("act")
        chosen = act(observation.reshape(1, -1))[0] + settings.action_noise * noise
        bounded: NDArray[np.float32] = np.minimum(np.maximum(chosen, -1), 1).astype(np.float32)
        return bounded

    return choose
