"""The loop of off-policy algorithms in Python: an environment step, an action, a transition, and updates at intervals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.rl.checkpoint import Arrays
from hpcrl.rl.distributed.agreement import any_rank
from hpcrl.rl.interfaces import Act, Algorithm, Learner
from hpcrl.rl.loops.acting import make_actor
from hpcrl.rl.loops.warming import restored
from hpcrl.rl.replay.uniform import Replay
from hpcrl.rl.runs import Run
from hpcrl.rl.schedules import linear

# Several ranks agree on whether to stop after each interval of this many steps.
_AGREE_INTERVAL = 256
# From algorithm, act, generator and switch of phases: the choice from an observation (inputs,) and the step.
MakeChooser = Callable[..., Callable[[NDArray[np.float32], int], int]]


class OffPolicyLoop:
    """For every framework. `step` counts the environment steps of all ranks; each rank has its own environment and replay."""

    def __init__(
        self, algorithm: Algorithm, chooser: MakeChooser, environment: Any, learner: Learner, run: Run
    ) -> None:
        self._algorithm, self._settings, self._environment = algorithm, algorithm.settings, environment
        self._learner, self._run, self._clock = learner, run, run.clock
        extra = [run.rank] if run.rank else []
        self._explore, self._draw = (np.random.default_rng([run.seed, stream, *extra]) for stream in (1, 2))
        self._seed = run.seed + 1_000_003 * run.rank
        self._replay = Replay(max(1, self._settings.buffer_size // run.ranks), algorithm.space.inputs)
        self._actor = make_actor(learner, algorithm)
        self.act: Act = self._actor.act
        self._choose = chooser(algorithm, self.act, self._explore, run.clock.switch)
        self.step = self.episodes = 0
        self._observation: NDArray[np.float32] | None = None

    def advance(self, until: int, stop: Callable[[], bool]) -> bool:
        settings, environment, replay, ranks = self._settings, self._environment, self._replay, self._run.ranks
        choose, switch, targets = self._choose, self._clock.switch, tuple(self._algorithm.targets)
        learner, every = self._learner, self._algorithm.sync_every
        if self._observation is None:
            self._observation = environment.reset(seed=self._seed + self.step)[0].astype(np.float32)
            self._value, self._length = 0.0, 0
        observation, step = self._observation, self.step
        while step < until:
            # Several ranks must stop at the same step.
            if stop() if ranks == 1 else step % _AGREE_INTERVAL < ranks and any_rank(self._run.collective, stop()):
                return False
            action = choose(observation, step)
            switch("env_step")
            following, reward, terminated, truncated, _ = environment.step(action)
            following = following.astype(np.float32)
            reward = float(reward)
            switch("replay")
            replay.add(observation, action, reward, following, terminated)
            observation = following
            self._value += reward
            self._length += 1
            step += ranks
            self.step = step
            if terminated or truncated:
                self.episodes += 1
                self._run.reporter.episode(step, self._value, self._length)
                switch("env_step")
                observation = environment.reset()[0].astype(np.float32)
                self._value, self._length = 0.0, 0
            self._observation = observation
            switch("other")
            # Each rank sees only its own steps: an interval ends when a multiple of it was passed.
            if step % every < ranks:
                for target in targets:
                    learner.sync(target, self._algorithm.sync_share)
            if step % settings.train_interval < ranks and step >= settings.learning_starts:
                self._learn()
        return True

    def _learn(self) -> None:
        """Take the updates of one interval."""
        settings, learner, replay, draw = self._settings, self._learner, self._replay, self._draw
        switch, share = self._clock.switch, settings.batch_size // self._run.ranks
        rate = linear(settings.learning_rate, settings.final_learning_rate, settings.total_steps, self.step)
        for number in range(settings.updates):
            switch("replay")
            sampled = replay.sample(share, draw)
            switch("transfer")
            batch = learner.transfer(sampled)
            switch("update")
            for gradient_step in self._algorithm.steps:
                if number % gradient_step.every == 0:
                    learner.update(gradient_step.name, batch, rate)
            if self._run.precise_phases:
                learner.synchronize()
        learner.synchronize()
        self._actor.refresh()
        switch("other")
        self._run.reporter.progress(self.step, settings.total_steps)

    def close(self) -> None:
        """Do nothing: there are no processes."""

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        facts = {"explore": self._explore.bit_generator.state, "draw": self._draw.bit_generator.state}
        return self._replay.state(), facts

    def load_state(self, arrays: Arrays, facts: dict[str, Any]) -> None:
        self._replay.load_state(arrays)
        self._explore.bit_generator.state, self._draw.bit_generator.state = facts["explore"], facts["draw"]
        self._actor.refresh()


def make_loop(
    algorithm: Algorithm, implementation: Any, make_environment: Callable[[], Any], learner: Learner, run: Run
) -> OffPolicyLoop:
    """Return the loop, with a learner that has compiled all of its programs."""
    with restored(learner):
        _warm_up(algorithm, learner, algorithm.settings.batch_size // run.ranks)
    return OffPolicyLoop(algorithm, implementation.chooser, make_environment(), learner, run)


def _warm_up(algorithm: Algorithm, learner: Learner, share: int) -> None:
    """Call every compiled shape once."""
    settings, inputs = algorithm.settings, algorithm.space.inputs
    if settings.acting == "framework":
        for count in (1, settings.evaluation_episodes):
            learner.act(np.zeros((count, inputs), np.float32))
    replay = Replay(1, inputs)
    replay.add(np.zeros(inputs, np.float32), 0, 0.0, np.zeros(inputs, np.float32), False)
    batch = learner.transfer(replay.sample(share, np.random.default_rng(0)))
    for gradient_step in algorithm.steps:
        learner.update(gradient_step.name, batch, settings.learning_rate)
    for target in algorithm.targets:
        learner.sync(target, algorithm.sync_share)
