"""The environment's part of an off-policy algorithm with several environments, which step together."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcrl.rl.distributed.agreement import any_rank
from hpcrl.rl.interfaces import Actor, Algorithm, Observations, VectorEnvironment
from hpcrl.rl.loops.exploring import AGREE_INTERVAL, SEEDS_APART
from hpcrl.rl.runs import Run


class StoreMany(Protocol):
    """Takes a transition of each environment: observations, actions, rewards, next observations, terminated, ended."""

    def __call__(
        self,
        observations: Observations,
        actions: NDArray[np.int64],
        rewards: NDArray[np.float32],
        following: Observations,
        terminated: NDArray[np.bool_],
        ended: NDArray[np.bool_],
        /,
    ) -> None: ...


class ManyExplorer:
    """Explores `environments`, this rank's share of all. `step` counts the environment steps of all ranks.

    `told` hears of each ended episode: step, return, length. With one environment it does what the Explorer of a single one does.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        implementation: Any,
        environments: VectorEnvironment,
        actor: Actor,
        run: Run,
        store: StoreMany,
        told: Callable[[int, float, int], None],
    ) -> None:
        self._environments, self._run, self._store, self._told = environments, run, store, told
        self._dtype, self.stride = algorithm.space.dtype, run.ranks * environments.count
        self._draw = np.random.default_rng([run.seed, 1, *([run.rank] if run.rank else [])])
        self._choose = implementation.many_chooser(algorithm, actor, self._draw, run.clock.switch)
        self.step = self.episodes = 0
        self._observations: Observations | None = None

    def advance(self, until: int, stop: Callable[[], bool], episodes: float = math.inf) -> bool:
        """Continue until step `until` is reached or passed; False if `stop` ended it earlier. `episodes` is infinite."""
        count, switch, alone = self._environments.count, self._run.clock.switch, self._run.ranks == 1
        if self._observations is None:
            first = SEEDS_APART * count * self._run.rank + self._run.seed + self.step
            seeds = [first + SEEDS_APART * index for index in range(count)]
            self._observations = self._environments.reset(seeds).astype(self._dtype, copy=False)
            self._values, self._lengths = np.zeros(count), np.zeros(count, np.int64)
        while self.step < until:
            # Several ranks must stop at the same step.
            if stop() if alone else self.step % AGREE_INTERVAL < self.stride and any_rank(self._run.collective, stop()):
                return False
            actions = self._choose(self._observations, self.step)
            switch("env_step")
            transitions = self._environments.step(actions)
            switch("replay")
            last = transitions.last.astype(self._dtype, copy=False)
            ends = transitions.terminated, transitions.ended
            self._store(self._observations, actions, transitions.rewards, last, *ends)
            self._observations = transitions.observations.astype(self._dtype, copy=False)
            self._values += transitions.rewards
            self._lengths += 1
            self.step += self.stride
            for index in np.flatnonzero(transitions.ended):
                self.episodes += 1
                self._told(self.step, float(self._values[index]), int(self._lengths[index]))
                self._values[index], self._lengths[index] = 0.0, 0
            switch("other")
        return True

    def close(self) -> None:
        """End processes of environments, if there are any."""
        self._environments.close()

    def state(self) -> dict[str, Any]:
        """Return the state of the random stream. The episodes are not continued: environments cannot be stored."""
        return dict(self._draw.bit_generator.state)

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self._draw.bit_generator.state = state
