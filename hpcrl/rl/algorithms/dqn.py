"""Deep Q-learning (Mnih et al. 2015, doi 10.1038/nature14236): configuration and the one training loop.

The loop, environment, replay, schedules, first weights and random streams are the same for every framework;
only the learner differs. Defaults are the settings under which DQN reaches 1,000 steps on CartPole-v1
(rl-baselines3-zoo's, with a linear learning-rate decay, without which the last policies do not hold).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hpcrl.errors import UsageError, suggestion
from hpcrl.rl import checkpoint
from hpcrl.rl.evaluation import evaluate
from hpcrl.rl.learner import DqnLearner, Network
from hpcrl.rl.replay import Replay
from hpcrl.rl.schedules import linear
from hpcrl.telemetry.phases import PhaseClock


@dataclass(frozen=True)
class DqnConfig:
    """Hyperparameters; steps are environment steps."""

    total_steps: int = 50_000
    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 2.3e-3
    final_learning_rate: float = 0.0
    batch_size: int = 64
    buffer_size: int = 100_000
    learning_starts: int = 1_000
    gamma: float = 0.99
    target_interval: int = 10
    train_interval: int = 256
    updates: int = 128
    initial_epsilon: float = 1.0
    final_epsilon: float = 0.04
    exploration_fraction: float = 0.16
    max_gradient_norm: float = 10.0
    loss: str = "huber"
    double: bool = False
    adam_epsilon: float = 1e-8
    evaluation_interval: int = 2_500
    evaluation_episodes: int = 10

    @classmethod
    def from_mapping(cls, values: dict[str, Any]) -> DqnConfig:
        """Check hyperparameters by name, type and range.

        Raises:
            UsageError: one is unknown or makes no sense.
        """
        known = {field.name: field for field in fields(cls)}
        for name, value in values.items():
            if name not in known:
                raise UsageError(f"dqn: no hyperparameter {name!r}; {suggestion(name, known)}")
            default = known[name].default
            if name == "hidden":
                good = (
                    isinstance(value, list | tuple)
                    and value
                    and all(isinstance(each, int) and each > 0 for each in value)
                )
            elif isinstance(default, bool | str):
                good = isinstance(value, type(default))
            elif isinstance(default, int):
                good = isinstance(value, int) and not isinstance(value, bool) and value > 0
            else:
                good = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
            if not good:
                raise UsageError(f"dqn: {name}: {value!r} will not do; the default is {default!r}")
        checked: dict[str, Any] = {**values, **({"hidden": tuple(values["hidden"])} if "hidden" in values else {})}
        config = cls(**checked)
        if config.loss not in ("huber", "mse"):
            raise UsageError(f"dqn: loss: {config.loss!r} is neither huber nor mse")
        return config

    def learner_settings(self) -> dict[str, Any]:
        """Return what a learner's constructor takes besides network and weights."""
        names = ("gamma", "max_gradient_norm", "loss", "double", "adam_epsilon")
        return {name: getattr(self, name) for name in names}


class Reporter(Protocol):
    """Where the loop reports to; times are seconds of training."""

    def episode(self, step: int, value: float, length: int) -> None: ...

    def evaluation(self, step: int, value: float) -> None: ...

    def progress(self, step: int, total: int) -> None: ...


@dataclass(frozen=True)
class Result:
    """How a run ended: `outcome` is completed, preempted (a checkpoint was written) or diverged."""

    outcome: str
    steps: int
    episodes: int
    final_score: float | None
    best_score: float | None
    goal_step: int | None


def train(
    config: DqnConfig,
    make_environment: Callable[[], Any],
    make_learner: Callable[[Network, np.random.Generator], DqnLearner],
    seed: int,
    reporter: Reporter,
    clock: PhaseClock,
    goal: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    checkpoint_file: Path | None = None,
) -> Result:
    """Train from scratch, or on from a checkpoint, until the last step or until `stop` says so.

    Random streams, all from `seed`: first weights, exploration, replay; the environment is seeded once.

    Raises:
        UsageError: the environment is not one with vector observations and discrete actions.
    """
    environment = make_environment()
    evaluation_environments = [make_environment() for _ in range(config.evaluation_episodes)]
    network = _network(environment, config)
    weights_stream, explore, draw = (np.random.default_rng([seed, stream]) for stream in range(3))
    learner = make_learner(network, weights_stream)
    replay = Replay(config.buffer_size, network.inputs)
    step = episodes = 0
    best: float | None = None
    goal_step: int | None = None
    if checkpoint_file is not None and (saved := checkpoint.load(checkpoint_file)) is not None:
        arrays, facts = saved
        learner.load_state(checkpoint.part("learner", arrays))
        replay.load_state(checkpoint.part("replay", arrays))
        explore.bit_generator.state, draw.bit_generator.state = facts["explore"], facts["draw"]
        step, episodes, best, goal_step = facts["step"], facts["episodes"], facts["best"], facts["goal_step"]

    def result(outcome: str, final: float | None = None) -> Result:
        return Result(outcome, step, episodes, final, best, goal_step)

    def score() -> float:
        nonlocal best, goal_step
        clock.switch("evaluate")
        mean = float(evaluate(learner.act, evaluation_environments, seed=10_000 + seed).mean())
        best = mean if best is None else max(best, mean)
        if goal is not None and goal_step is None and mean >= goal:
            goal_step = step
        reporter.evaluation(step, mean)
        return mean

    # Whatever a framework compiles or loads at its first call is part of the set-up, not of the training.
    _warm_up(learner, network, config)
    learner.synchronize()
    clock.switch("other")
    observation = environment.reset(seed=seed + step)[0].astype(np.float32)
    value, length = 0.0, 0
    while step < config.total_steps:
        if stop():
            if checkpoint_file is not None:
                arrays = {
                    **checkpoint.nested("learner", learner.state()),
                    **checkpoint.nested("replay", replay.state()),
                }
                facts = {"explore": explore.bit_generator.state, "draw": draw.bit_generator.state}
                facts |= {"step": step, "episodes": episodes, "best": best, "goal_step": goal_step}
                checkpoint.save(checkpoint_file, arrays, facts)
            return result("preempted")
        epsilon = linear(
            config.initial_epsilon,
            config.final_epsilon,
            config.exploration_fraction * config.total_steps,
            step,
        )
        if explore.random() < epsilon:
            action = int(explore.integers(network.outputs))
        else:
            clock.switch("act")
            action = int(learner.act(observation[None])[0])
        clock.switch("env_step")
        following, reward, terminated, truncated, _ = environment.step(action)
        following = following.astype(np.float32)
        clock.switch("replay")
        replay.add(observation, action, float(reward), following, terminated)
        observation = following
        value += float(reward)
        length += 1
        step += 1
        if terminated or truncated:
            episodes += 1
            reporter.episode(step, value, length)
            clock.switch("env_step")
            observation = environment.reset()[0].astype(np.float32)
            value, length = 0.0, 0
        clock.switch("other")
        if step % config.target_interval == 0:
            learner.sync_target()
        if step % config.train_interval == 0 and step >= config.learning_starts:
            rate = linear(config.learning_rate, config.final_learning_rate, config.total_steps, step)
            for _ in range(config.updates):
                clock.switch("replay")
                batch = replay.sample(config.batch_size, draw)
                clock.switch("update")
                learner.update(batch, rate)
            learner.synchronize()
            clock.switch("other")
            reporter.progress(step, config.total_steps)
        if step % config.evaluation_interval == 0 and step < config.total_steps:
            if not all(np.isfinite(each).all() for each in learner.weights().values()):
                return result("diverged")
            score()
            clock.switch("other")
    final = score()
    clock.switch("other")
    reporter.progress(step, config.total_steps)
    return result("completed", final)


def _network(environment: Any, config: DqnConfig) -> Network:
    shape = getattr(environment.observation_space, "shape", None)
    actions = getattr(environment.action_space, "n", None)
    if shape is None or len(shape) != 1 or actions is None:
        raise UsageError("dqn: needs an environment with a vector of observations and discrete actions")
    return Network(shape[0], config.hidden, int(actions))


def _warm_up(learner: DqnLearner, network: Network, config: DqnConfig) -> None:
    """Call every compiled shape once and put the learner back as it was."""
    before = {name: array.copy() for name, array in learner.state().items()}
    for count in (1, config.evaluation_episodes):
        learner.act(np.zeros((count, network.inputs), np.float32))
    replay = Replay(1, network.inputs)
    replay.add(np.zeros(network.inputs, np.float32), 0, 0.0, np.zeros(network.inputs, np.float32), False)
    learner.update(replay.sample(config.batch_size, np.random.default_rng(0)), config.learning_rate)
    learner.load_state(before)
