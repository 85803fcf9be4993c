"""Deep Q-learning (Mnih et al. 2015, doi 10.1038/nature14236): configuration and the one training loop.

The loop, environment, replay, schedules, initial weights and random streams are the same for every framework;
only the learner differs. hpcrl.catalogue.algorithms.dqn has the hyperparameters and their defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcrl.catalogue.algorithms.dqn import Settings, share_fault
from hpcrl.catalogue.fields import check
from hpcrl.errors import UsageError
from hpcrl.rl import checkpoint
from hpcrl.rl.distributed.group import any_rank, check_same_start
from hpcrl.rl.evaluation import evaluate, start_seeds
from hpcrl.rl.frameworks.numpy.dqn import q_values
from hpcrl.rl.learner import Collective, DqnLearner, DqnSettings, Network
from hpcrl.rl.replay import Replay
from hpcrl.rl.schedules import linear
from hpcrl.telemetry.phases import PhaseClock

# Several ranks agree on whether to stop after each interval of this many steps.
_AGREE_INTERVAL = 256
# Random streams of a seed, in addition to those of the loop.
_EVALUATION, _CONFIRMATION = 3, 4


class DqnConfig(Settings):
    """The catalogue's hyperparameters of DQN with their schedules."""

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> DqnConfig:
        """Check hyperparameters by name, type and range.

        Raises:
            UsageError: one is unknown or out of range.
        """
        return check("dqn", cls, values)

    def learner_settings(self) -> DqnSettings:
        """Return the settings of a learner besides its network."""
        return DqnSettings(**{field.name: getattr(self, field.name) for field in fields(DqnSettings)})

    def epsilon(self, step: int) -> float:
        """Return the probability of a random action."""
        steps = self.exploration_fraction * self.total_steps
        return linear(self.initial_epsilon, self.final_epsilon, steps, step)

    def rate(self, step: int) -> float:
        """Return the learning rate."""
        return linear(self.learning_rate, self.final_learning_rate, self.total_steps, step)


class Reporter(Protocol):
    """Receives the reports of the loop; times are seconds of training."""

    def episode(self, step: int, value: float, length: int) -> None: ...

    def evaluation(self, step: int, value: float) -> None: ...

    def confirmation(self, step: int, value: float, reached: bool) -> None: ...

    def progress(self, step: int, total: int) -> None: ...

    def spent(self) -> dict[str, float | None]:
        """Return the times so far, for a checkpoint."""

    def resumed(self, step: int, spent: dict[str, float | None]) -> None:
        """Continue from the times that :meth:`spent` returned when the checkpoint of this step was written."""


@dataclass(frozen=True)
class Result:
    """The end of a run: `outcome` is completed, preempted (a checkpoint was written) or diverged."""

    outcome: str
    steps: int
    episodes: int
    final_score: float | None
    best_score: float | None
    goal_step: int | None


Arrays = checkpoint.Arrays
Act = Callable[[NDArray[np.float32]], NDArray[np.int64]]
MakeLearner = Callable[[Network, np.random.Generator], DqnLearner]


class Loop(Protocol):
    """Takes environment steps and updates: :class:`HostLoop`, or the loop of a learner (`fused`)."""

    step: int
    episodes: int

    def advance(self, until: int, stop: Callable[[], bool]) -> bool:
        """Continue to step `until`; False if `stop` ended it earlier."""

    def act(self, observations: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return greedy actions."""

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return arrays and plain facts for a checkpoint, without the learner's."""

    def load_state(self, arrays: Arrays, facts: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned."""


def train(
    config: DqnConfig,
    make_environment: Callable[[], Any],
    make_learner: MakeLearner,
    seed: int,
    reporter: Reporter,
    clock: PhaseClock,
    goal: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    checkpoint_file: Path | None = None,
    collective: Collective | None = None,
    precise_phases: bool = False,
) -> Result:
    """Train from scratch or from a checkpoint, until the last step, the goal (`stop_at_goal`), or `stop` ends it.

    All random streams come from `seed`: initial weights, exploration, replay, starts of evaluations and of confirmations of
    the goal. The environment is seeded once. Every evaluation has the same starts. With several
    ranks each has its own environment, replay and streams; weights stay equal, because gradients are averaged.
    Rank 0 evaluates. With `precise_phases` the loop waits for the device after every update, so that no phase contains
    another's work. The device then cannot work while the loop continues.

    Raises:
        UsageError: the environment is not one with vector observations and discrete actions, or the ranks cannot share
            the batch evenly.
        HpcrlError: the ranks start from different weights or steps.
    """
    ranks = collective.ranks if collective else 1
    if wrong := share_fault(config, ranks):
        raise UsageError(f"dqn: {wrong}")
    if config.stop_at_goal and goal is None:
        raise UsageError("dqn: stop_at_goal: the study has no `goal`")
    environment = make_environment()
    evaluation_environments = [make_environment() for _ in range(config.evaluation_episodes)]
    network = _network(environment, config)
    learner = make_learner(network, np.random.default_rng([seed, 0]))
    if collective:
        check_same_start(collective, learner.weights())
    clock.switch("compile")
    own_loop = getattr(learner, "make_loop", lambda *_: None)(config, environment, seed, reporter, clock)
    loop: Loop = own_loop or HostLoop(
        config, environment, network, learner, seed, reporter, clock, collective, precise_phases
    )
    best: float | None = None
    goal_step: int | None = None
    if (saved := _common_checkpoint(checkpoint_file, collective)) is not None:
        arrays, facts = saved
        learner.load_state(checkpoint.part("learner", arrays))
        loop.load_state(checkpoint.part("loop", arrays), facts["loop"])
        loop.step, loop.episodes, best, goal_step = facts["step"], facts["episodes"], facts["best"], facts["goal_step"]
        reporter.resumed(loop.step, facts.get("spent", {}))

    def result(outcome: str, final: float | None = None) -> Result:
        return Result(outcome, loop.step, loop.episodes, final, best, goal_step)

    def mean_return(stream: int, episodes: int) -> float:
        return float(evaluate(loop.act, evaluation_environments, start_seeds(seed, stream, episodes)).mean())

    def score() -> tuple[float | None, bool]:
        """Return rank 0's mean return and, on every rank, whether the training ends here."""
        nonlocal best, goal_step
        clock.switch("evaluate")
        mean = None
        if not collective or collective.rank == 0:
            mean = mean_return(_EVALUATION, config.evaluation_episodes)
            best = mean if best is None else max(best, mean)
            reporter.evaluation(loop.step, mean)
            if goal is not None and goal_step is None and mean >= goal:
                again = mean_return(_CONFIRMATION, config.confirmation_episodes)
                reporter.confirmation(loop.step, again, again >= goal)
                goal_step = loop.step if again >= goal else None
        ends = config.stop_at_goal and goal_step is not None
        if collective:  # the other ranks wait here, not at the first gradient afterwards
            ends = any_rank(collective, ends)
        clock.switch("other")
        return mean, ends

    final: float | None = None
    clock.switch("other")
    while loop.step < config.total_steps:
        until = min(config.total_steps, (loop.step // config.evaluation_interval + 1) * config.evaluation_interval)
        if not loop.advance(until, stop):
            if checkpoint_file is not None:
                arrays, loop_facts = loop.state()
                arrays = checkpoint.nested("learner", learner.state()) | checkpoint.nested("loop", arrays)
                facts = {"step": loop.step, "episodes": loop.episodes, "best": best, "goal_step": goal_step}
                facts |= {"spent": reporter.spent(), "loop": loop_facts}
                checkpoint.save(checkpoint_file, arrays, facts)
            return result("preempted")
        if not all(np.isfinite(each).all() for each in learner.weights().values()):
            return result("diverged")
        final, ends = score()
        if ends:
            break
    reporter.progress(loop.step, config.total_steps)
    return result("completed", final)


class HostLoop:
    """The loop in Python, for every framework: an environment step, an action, a transition, and updates at intervals.

    `step` counts the environment steps of all ranks.
    """

    def __init__(
        self,
        config: DqnConfig,
        environment: Any,
        network: Network,
        learner: DqnLearner,
        seed: int,
        reporter: Reporter,
        clock: PhaseClock,
        collective: Collective | None,
        precise_phases: bool,
    ) -> None:
        self._precise = precise_phases
        self._config, self._environment, self._learner = config, environment, learner
        self._reporter, self._clock, self._collective = reporter, clock, collective
        rank, self._ranks = (collective.rank, collective.ranks) if collective else (0, 1)
        own = [rank] if rank else []
        self._explore, self._draw = (np.random.default_rng([seed, stream, *own]) for stream in (1, 2))
        self._seed = seed + 1_000_003 * rank
        self._replay = Replay(max(1, config.buffer_size // self._ranks), network.inputs)
        self._actions = network.outputs
        self._dueling = network.dueling
        self._weights = learner.weights() if config.acting == "numpy" else None
        self.act: Act = self._act_in_numpy if config.acting == "numpy" else learner.act
        self.step = self.episodes = 0
        self._observation: NDArray[np.float32] | None = None
        # Compilation and loading at a framework's first call are not part of the training.
        _warm_up(learner, network, config, self._ranks)
        learner.synchronize()

    def _act_in_numpy(self, observations: NDArray[np.float32]) -> NDArray[np.int64]:
        assert self._weights is not None
        actions: NDArray[np.int64] = q_values(self._weights, observations, self._dueling).argmax(axis=1)
        return actions

    def advance(self, until: int, stop: Callable[[], bool]) -> bool:
        config, environment, learner, replay = self._config, self._environment, self._learner, self._replay
        explore, act, clock, ranks, reporter = self._explore, self.act, self._clock, self._ranks, self._reporter
        switch, actions = clock.switch, self._actions
        share = config.batch_size // ranks
        if self._observation is None:
            self._observation = environment.reset(seed=self._seed + self.step)[0].astype(np.float32)
            self._value, self._length = 0.0, 0
        observation, step = self._observation, self.step
        while step < until:
            # Several ranks must stop at the same step.
            if stop() if ranks == 1 else step % _AGREE_INTERVAL < ranks and any_rank(self._collective, stop()):
                return False
            if explore.random() < config.epsilon(step):
                action = int(explore.integers(actions))
            else:
                switch("act")
                action = int(act(observation.reshape(1, -1))[0])  # [None] has other strides and would compile again
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
                reporter.episode(step, self._value, self._length)
                switch("env_step")
                observation = environment.reset()[0].astype(np.float32)
                self._value, self._length = 0.0, 0
            self._observation = observation
            switch("other")
            # Each rank sees only its own steps: an interval ends when a multiple of it was passed.
            if step % config.target_interval < ranks:
                learner.sync_target()
            if step % config.train_interval < ranks and step >= config.learning_starts:
                rate = config.rate(step)
                for _ in range(config.updates):
                    switch("replay")
                    sampled = replay.sample(share, self._draw)
                    switch("transfer")
                    batch = learner.transfer(sampled)
                    switch("update")
                    learner.update(batch, rate)
                    if self._precise:
                        learner.synchronize()
                learner.synchronize()
                if self._weights is not None:
                    self._weights = learner.weights()
                switch("other")
                reporter.progress(step, config.total_steps)
        return True

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        facts = {"explore": self._explore.bit_generator.state, "draw": self._draw.bit_generator.state}
        return self._replay.state(), facts

    def load_state(self, arrays: Arrays, facts: dict[str, Any]) -> None:
        self._replay.load_state(arrays)
        self._explore.bit_generator.state, self._draw.bit_generator.state = facts["explore"], facts["draw"]
        if self._weights is not None:
            self._weights = self._learner.weights()


def _common_checkpoint(path: Path | None, collective: Collective | None) -> tuple[Arrays, dict[str, Any]] | None:
    """Return the checkpoint; None if there is none, or if not all ranks have one of the same step."""
    saved = checkpoint.load(path) if path is not None else None
    if collective is None:
        return saved
    mine = np.array([saved[1]["step"] if saved else 0], np.float32)
    odd = abs(collective.average_array(mine) - mine)[0] > 0.1
    return None if any_rank(collective, saved is None or bool(odd)) else saved


def _network(environment: Any, config: DqnConfig) -> Network:
    shape = getattr(environment.observation_space, "shape", None)
    actions = getattr(environment.action_space, "n", None)
    if shape is None or len(shape) != 1 or actions is None:
        raise UsageError("dqn: expected an environment with vector observations and discrete actions")
    return Network(shape[0], config.hidden, int(actions), config.dueling)


def _warm_up(learner: DqnLearner, network: Network, config: DqnConfig, ranks: int) -> None:
    """Call every compiled shape once and restore the learner's state."""
    before = {name: array.copy() for name, array in learner.state().items()}
    if config.acting == "framework":
        for count in (1, config.evaluation_episodes):
            learner.act(np.zeros((count, network.inputs), np.float32))
    replay = Replay(1, network.inputs)
    replay.add(np.zeros(network.inputs, np.float32), 0, 0.0, np.zeros(network.inputs, np.float32), False)
    batch = replay.sample(config.batch_size // ranks, np.random.default_rng(0))
    learner.update(learner.transfer(batch), config.learning_rate)
    learner.sync_target()
    learner.load_state(before)
