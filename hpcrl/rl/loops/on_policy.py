"""The loop of on-policy algorithms in Python: a rollout of several environments, its advantages, epochs of minibatches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.rl.checkpoint import NamedArrays
from hpcrl.rl.distributed.agreement import any_rank
from hpcrl.rl.interfaces import Act, Algorithm, Learner, VectorEnvironment
from hpcrl.rl.loops.acting import make_actor
from hpcrl.rl.loops.scales import Scales
from hpcrl.rl.loops.warming import restored
from hpcrl.rl.measures import Measures
from hpcrl.rl.normalization import Moments
from hpcrl.rl.rollout import Rollout, Samples, advantages
from hpcrl.rl.runs import Run
from hpcrl.rl.schedules import linear, rate_of
from hpcrl.rl.vector.make import make_vector


class OnPolicyLoop:
    """For every framework. `step` counts the environment steps of all ranks; each rank has its share of the environments.

    An evaluation may come within a rollout, during which the policy does not change. A run stops between rollouts only.
    """

    def __init__(
        self, algorithm: Algorithm, implementation: Any, environments: VectorEnvironment, learner: Learner, run: Run
    ) -> None:
        settings, space = algorithm.settings, algorithm.space
        self._settings, self._environments, self._learner = settings, environments, learner
        self._run, self._clock = run, run.clock
        self._steps, self._batch = algorithm.steps, implementation.batch
        self._waits = not getattr(settings, "unsynchronized", False)
        extra = [run.rank] if run.rank else []
        self._explore, self._draw = (np.random.default_rng([run.seed, stream, *extra]) for stream in (1, 2))
        self._noise = self._explore.standard_normal if space.continuous else self._explore.gumbel
        self._actor = make_actor(learner, algorithm)
        self._measures = Measures(algorithm.steps[-1].aux)
        self._scales = Scales(space.inputs, environments.count, settings, run.collective)
        self.act: Act = lambda observations: self._actor.act(self._scales.observations(observations))
        self.step = self.episodes = 0
        self._rollout = Rollout(settings.rollout_steps, environments.count, space.inputs, sum(space.action_shape))
        self._silence = np.zeros((environments.count, space.actions), np.float32)
        self._filled = 0
        self._observations: NDArray[np.float32] | None = None

    def advance(self, until: int, stop: Callable[[], bool]) -> bool:
        switch, count = self._clock.switch, self._environments.count
        if self._observations is None:
            self._observations = self._environments.reset(self._start_seeds())
            self._values, self._lengths = np.zeros(count), np.zeros(count, np.int64)
        while self.step < until:
            # Several ranks must stop at the same step.
            if self._filled == 0 and any_rank(self._run.collective, stop()):
                return False
            self._take_step()
            if self._filled == self._settings.rollout_steps:
                switch("act")
                last_values = self._values_of(self._observations)
                switch("replay")
                self._learn(last_values)
                self._filled = 0
            switch("other")
        return True

    def _start_seeds(self) -> list[int]:
        """Return new seeds of the environments, other ones at each step and rank."""
        sequence = np.random.SeedSequence([self._run.seed, 5, self._run.rank, self.step])
        return [int(seed) for seed in sequence.generate_state(self._environments.count)]

    def _values_of(self, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        values: NDArray[np.float32] = self._actor.sample(self._scales.observations(observations), self._silence)[2]
        return values

    def _take_step(self) -> None:
        switch, rollout, row = self._clock.switch, self._rollout, self._filled
        observations = self._observations
        assert observations is not None
        switch("act")
        noise = self._noise(size=self._silence.shape).astype(np.float32)
        actions, logs, values = self._actor.sample(self._scales.observations(observations), noise)
        switch("env_step")
        transitions = self._environments.step(actions)
        switch("replay")
        rollout.observations[row], rollout.actions[row] = observations, actions
        rollout.logs[row], rollout.values[row], rollout.rewards[row] = logs, values, transitions.rewards
        rollout.terminated[row], rollout.ended[row] = transitions.terminated, transitions.ended
        truncated = transitions.ended & ~transitions.terminated
        if truncated.any():
            switch("act")
            rollout.following[row] = self._values_of(transitions.last)
            switch("replay")
        self._observations = transitions.observations
        self._scales.step(transitions.rewards, transitions.ended)
        self._values += transitions.rewards
        self._lengths += 1
        ranks = self._run.ranks
        self.step += ranks * self._environments.count
        for index in np.flatnonzero(transitions.ended):
            self.episodes += 1
            self._run.reporter.episode(self.step, float(self._values[index]), int(self._lengths[index]))
            self._values[index], self._lengths[index] = 0.0, 0
        self._filled += 1

    def _learn(self, last_values: NDArray[np.float32]) -> None:
        """Take the epochs of one rollout."""
        settings, learner, rollout, run = self._settings, self._learner, self._rollout, self._run
        switch, share = self._clock.switch, settings.minibatch_size // run.ranks
        rollout.rewards[:] = self._scales.rewards(rollout.rewards)
        estimates = advantages(rollout, last_values, settings.gamma, settings.gae_lambda)
        gains = estimates
        if settings.returns_lambda != settings.gae_lambda:
            gains = advantages(rollout, last_values, settings.gamma, settings.returns_lambda)
        whole = Samples(
            self._scales.observations(rollout.observations),
            rollout.actions,
            rollout.logs,
            estimates,
            gains + rollout.values,
            rollout.values,
        )
        flat: list[NDArray[Any]] = [array.reshape(-1, *array.shape[2:]) for array in whole]
        # The step before the rollout's: the first update has the first rate.
        begun = max(0, self.step - run.ranks * rollout.rewards.size)
        rates = [rate_of(step, settings, begun) for step in self._steps]
        at = partial(_at, settings.total_steps, begun)
        for _ in range(settings.epochs):
            switch("replay")
            order = self._draw.permutation(rollout.rewards.size)
            for start in range(0, len(order), share):
                switch("replay")
                chosen = order[start : start + share]
                samples = Samples(*(array[chosen] for array in flat))
                if settings.normalize_advantages:
                    samples = samples._replace(advantages=self._normalized(samples.advantages))
                switch("transfer")
                batch = learner.transfer(self._batch(samples, settings, at))
                switch("update")
                for step, rate in zip(self._steps, rates, strict=True):
                    for _ in range(step.times):
                        aux = learner.update(step.name, batch, rate)
                if run.precise_phases and self._waits:
                    learner.synchronize()
        switch("update")
        if self._waits:
            learner.synchronize()
            self._measures.add(learner, aux)  # which reads it
        self._actor.refresh()
        self._scales.learn(rollout.observations)
        switch("other")
        run.reporter.progress(self.step, settings.total_steps)

    def _normalized(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Subtract the mean and divide by the standard deviation, those of the minibatches of all ranks together."""
        centred = values - self._mean(values)
        normalized: NDArray[np.float32] = centred / (np.sqrt(self._mean(centred**2)) + np.float32(1e-8))
        return normalized

    def _mean(self, values: NDArray[np.float32]) -> np.float32:
        mean = values.mean(keepdims=True)
        return np.float32(self._run.collective.average_array(mean)[0] if self._run.collective else mean[0])

    def state(self) -> tuple[NamedArrays, dict[str, Any]]:
        facts = {"explore": self._explore.bit_generator.state, "draw": self._draw.bit_generator.state}
        return self._scales.state(), facts

    def load_state(self, arrays: NamedArrays, facts: dict[str, Any]) -> None:
        self._scales.load_state(arrays)
        self._explore.bit_generator.state, self._draw.bit_generator.state = facts["explore"], facts["draw"]
        self._actor.refresh()

    def measures(self) -> dict[str, float]:
        return self._measures.means()

    def moments(self) -> Moments | None:
        return self._scales.moments()

    def close(self) -> None:
        self._environments.close()


def _at(steps: int, step: int, start: float, end: float) -> np.float32:
    """Return what goes linearly from `start` to `end` over `steps` steps."""
    return np.float32(linear(start, end, steps, step))


def make_loop(
    algorithm: Algorithm, implementation: Any, make_environment: Callable[[], Any], learner: Learner, run: Run
) -> OnPolicyLoop:
    """Return the loop, with a learner that has compiled all of its programs."""
    settings = algorithm.settings
    # Before the learner computes anything: processes of environments should not inherit its threads.
    environments = make_vector(
        settings.stepping, make_environment, settings.environments // run.ranks, settings.workers
    )
    with restored(learner):
        _warm_up(algorithm, implementation, learner, environments.count, settings.minibatch_size // run.ranks)
    return OnPolicyLoop(algorithm, implementation, environments, learner, run)


def _warm_up(algorithm: Algorithm, implementation: Any, learner: Learner, environments: int, minibatch: int) -> None:
    """Call every compiled shape once."""
    settings, space, inputs = algorithm.settings, algorithm.space, algorithm.space.inputs
    if settings.acting == "framework":
        for count in (1, settings.evaluation_episodes):
            learner.act(np.zeros((count, inputs), np.float32))
        noise = np.zeros((environments, space.actions), np.float32)
        learner.sample(np.zeros((environments, inputs), np.float32), noise)
    numbers = [np.zeros(minibatch, np.float32) for _ in range(4)]
    actions = np.zeros((minibatch, *space.action_shape), space.action_dtype)
    samples = Samples(np.zeros((minibatch, inputs), np.float32), actions, *numbers)
    batch = learner.transfer(implementation.batch(samples, settings, partial(_at, 1, 0)))
    for step in algorithm.steps:
        learner.update(step.name, batch, settings.learning_rate)
