"""The environment's part of off-policy algorithms: explore, and hand on each transition."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from hpcrl.rl.distributed.agreement import any_rank
from hpcrl.rl.interfaces import Action, Actor, Algorithm, Observations
from hpcrl.rl.runs import Run

# Several ranks agree on whether to stop after each interval of this many steps.
AGREE_INTERVAL = 256
# Between the seeds of two environments.
SEEDS_APART = 1_000_003


class Store(Protocol):
    """Takes a transition: observation, action, reward, next observation, terminated, ended."""

    def __call__(
        self,
        observation: Observations,
        action: Action,
        reward: float,
        following: Observations,
        terminated: bool,
        ended: bool,
        /,
    ) -> None: ...


class Explorer:
    """Explores one environment. `step` counts the environment steps of all `count` explorers, of which this is number `number`.

    `told` hears of each ended episode: step, return, length.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        implementation: Any,
        environment: Any,
        actor: Actor,
        run: Run,
        store: Store,
        told: Callable[[int, float, int], None],
        number: int = 0,
        count: int = 1,
    ) -> None:
        self._environment, self._run, self._store, self._told = environment, run, store, told
        self._dtype, self.stride, self._own = algorithm.space.dtype, count, [number] if number else []
        self._seed = run.seed + SEEDS_APART * number
        self._draw = np.random.default_rng([run.seed, 1, *self._own])
        self._choose = implementation.chooser(algorithm, actor, self._draw, run.clock.switch)
        self.step = self.episodes = 0
        self._observation: Observations | None = None

    def advance(self, until: int, stop: Callable[[], bool], episodes: float = math.inf) -> bool:
        """Continue to step `until` or to the end of episode `episodes`; False if `stop` ended it earlier."""
        environment, choose, store, stride = self._environment, self._choose, self._store, self.stride
        switch, alone, dtype = self._run.clock.switch, self._run.ranks == 1, self._dtype
        if self._observation is None:
            self._observation = environment.reset(seed=self._seed + self.step)[0].astype(dtype)
            self._value, self._length = 0.0, 0
        observation, step, value, length = self._observation, self.step, self._value, self._length
        going = True
        while step < until and self.episodes < episodes:
            # Several ranks must stop at the same step.
            if stop() if alone else step % AGREE_INTERVAL < stride and any_rank(self._run.collective, stop()):
                going = False
                break
            action = choose(observation, step, self.episodes)
            switch("env_step")
            following, reward, terminated, truncated, _ = environment.step(action)
            following = following.astype(dtype)
            reward = float(reward)
            switch("replay")
            store(observation, action, reward, following, terminated, terminated or truncated)
            observation = following
            value += reward
            length += 1
            step += stride
            if terminated or truncated:
                self.episodes += 1
                self._told(step, value, length)
                switch("env_step")
                observation = environment.reset()[0].astype(dtype)
                value, length = 0.0, 0
            switch("other")
        self._observation, self.step, self._value, self._length = observation, step, value, length
        return going

    def close(self) -> None:
        """Do nothing: there are no processes."""

    def state(self) -> dict[str, Any]:
        """Return the state of the random stream. The episode is not continued: environments cannot be stored."""
        return dict(self._draw.bit_generator.state)

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self._draw.bit_generator.state = state

    def restart(self, step: int, episodes: int) -> None:
        """Begin at an environment step and after some episodes, with random numbers that no other step begins with."""
        self.step, self.episodes = step, episodes
        self._draw.bit_generator.state = np.random.default_rng(
            [self._run.seed, 1, *self._own, step]
        ).bit_generator.state
