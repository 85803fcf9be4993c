"""The loop of off-policy algorithms in Python: an environment step, an action, a transition, and updates at intervals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.rl.checkpoint import NamedArrays
from hpcrl.rl.distributed.agreement import any_rank
from hpcrl.rl.interfaces import Act, Algorithm, Arrays, Learner, Memory
from hpcrl.rl.loops.acting import make_actor
from hpcrl.rl.loops.measures import Measures
from hpcrl.rl.loops.warming import restored
from hpcrl.rl.runs import Run
from hpcrl.rl.schedules import linear

# Several ranks agree on whether to stop after each interval of this many steps.
_AGREE_INTERVAL = 256
_STACKED_BYTES = 2**25


class OffPolicyLoop:
    """For every framework. `step` counts the environment steps of all ranks; each rank has its own environment and replay."""

    def __init__(self, algorithm: Algorithm, implementation: Any, environment: Any, learner: Learner, run: Run) -> None:
        self._algorithm, self._settings, self._environment = algorithm, algorithm.settings, environment
        self._learner, self._run, self._clock = learner, run, run.clock
        extra = [run.rank] if run.rank else []
        self._explore, self._draw = (np.random.default_rng([run.seed, stream, *extra]) for stream in (1, 2))
        self._seed = run.seed + 1_000_003 * run.rank
        self._memory: Memory = implementation.memory(algorithm, max(1, self._settings.buffer_size // run.ranks), run)
        self._measures = Measures(algorithm.steps[-1].aux)
        self._share = self._settings.batch_size // run.ranks
        self._stacks = _stacks(algorithm, self._memory, self._share)
        self._burst = learner.burst if self._stacks and algorithm.has_one_step else None
        self._actor = make_actor(learner, algorithm)
        self.act: Act = self._actor.act
        self._choose = implementation.chooser(algorithm, self._actor, self._explore, run.clock.switch)
        self.step = self.episodes = 0
        self._observation: NDArray[np.float32] | None = None

    def advance(self, until: int, stop: Callable[[], bool]) -> bool:
        settings, environment, memory, ranks = self._settings, self._environment, self._memory, self._run.ranks
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
            memory.add(observation, action, reward, following, terminated, terminated or truncated)
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
        settings, learner, memory, switch = self._settings, self._learner, self._memory, self._clock.switch
        rate = linear(settings.learning_rate, settings.final_learning_rate, settings.total_steps, self.step)
        if self._stacks:
            switch("replay")
            batches = memory.sample_many(settings.updates, self._share, self._draw, self.step)
        if self._burst:
            switch("transfer")
            transferred = learner.transfer(batches)
            switch("update")
            aux = self._burst(self._algorithm.steps[0].name, transferred, rate)
        else:
            for number in range(settings.updates):
                if not self._stacks:
                    switch("replay")
                    sampled = memory.sample(self._share, self._draw, self.step)
                switch("transfer")
                one = tuple(array[number] for array in batches) if self._stacks else sampled
                aux = self._update(one, number, rate)
        learner.synchronize()
        self._actor.refresh()
        self._measures.add(learner, aux)
        switch("other")
        self._run.reporter.progress(self.step, settings.total_steps)

    def _update(self, sampled: Arrays, number: int, rate: float) -> Any:
        """Take the gradient steps of update `number` of an interval; return the aux of the last."""
        switch, learner, memory = self._clock.switch, self._learner, self._memory
        batch = learner.transfer(sampled)
        switch("update")
        for gradient_step in self._algorithm.steps:
            if number % gradient_step.every == 0:
                aux = learner.update(gradient_step.name, batch, rate)
        if memory.prioritized:
            switch("replay")
            memory.prioritize(learner.read(aux)[0])
        if self._run.precise_phases:
            learner.synchronize()
        return aux

    def measures(self) -> dict[str, float]:
        return self._measures.means()

    def close(self) -> None:
        """Do nothing: there are no processes."""

    def state(self) -> tuple[NamedArrays, dict[str, Any]]:
        facts = {"explore": self._explore.bit_generator.state, "draw": self._draw.bit_generator.state}
        return self._memory.state(), facts | {"memory": self._memory.facts()}

    def load_state(self, arrays: NamedArrays, facts: dict[str, Any]) -> None:
        self._memory.load_state(arrays)
        self._memory.load_facts(facts["memory"])
        self._explore.bit_generator.state, self._draw.bit_generator.state = facts["explore"], facts["draw"]
        self._actor.refresh()


def _stacks(algorithm: Algorithm, memory: Memory, share: int) -> bool:
    """Tell whether the batches of an interval are drawn together: no loss changes the draws, and they need little memory."""
    size = 2 * 4 * algorithm.space.inputs * share * algorithm.settings.updates  # bytes of observations
    return not memory.prioritized and algorithm.settings.updates > 1 and size <= _STACKED_BYTES


def make_loop(
    algorithm: Algorithm, implementation: Any, make_environment: Callable[[], Any], learner: Learner, run: Run
) -> OffPolicyLoop:
    """Return the loop, with a learner that has compiled all of its programs."""
    with restored(learner):
        _warm_up(algorithm, implementation, learner, run)
    return OffPolicyLoop(algorithm, implementation, make_environment(), learner, run)


def _warm_up(algorithm: Algorithm, implementation: Any, learner: Learner, run: Run) -> None:
    """Call every compiled shape once."""
    settings, nothing = algorithm.settings, np.zeros(algorithm.space.inputs, np.float32)
    draw = np.random.default_rng(0)
    if settings.acting == "framework":
        learner.act(np.zeros((settings.evaluation_episodes, algorithm.space.inputs), np.float32))
        learner.act(nothing.reshape(1, -1))
        choose = implementation.chooser(algorithm, make_actor(learner, algorithm), draw, lambda phase: None)
        choose(nothing, settings.total_steps)
    memory = implementation.memory(algorithm, 1, run)
    memory.add(nothing, 0, 0.0, nothing, False, True)
    share = settings.batch_size // run.ranks
    if learner.burst and algorithm.has_one_step and _stacks(algorithm, memory, share):
        batches = learner.transfer(memory.sample_many(settings.updates, share, draw))
        learner.burst(algorithm.steps[0].name, batches, settings.learning_rate)
    else:
        batch = learner.transfer(memory.sample(share, draw))
        for gradient_step in algorithm.steps:
            learner.update(gradient_step.name, batch, settings.learning_rate)
    for target in algorithm.targets:
        learner.sync(target, algorithm.sync_share)
