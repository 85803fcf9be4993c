"""VPG: its specification against independent references, its loop seen from outside, and what it learns."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, MultiDiscrete
from numpy.typing import NDArray

from hpcrl.catalogue.algorithms.vpg import Settings, fault
from hpcrl.errors import UsageError
from hpcrl.rl.envs.make import gymnasium_environment
from hpcrl.rl.frameworks.numpy.core import Learner
from hpcrl.rl.interfaces import Algorithm, Arrays, Space, Weights
from hpcrl.rl.make import algorithm_on, assemble, make_training
from hpcrl.rl.rollout import Rollout, advantages
from hpcrl.rl.runs import Run
from hpcrl.rl.specification import vpg as specification
from hpcrl.rl.specification.vpg import policy_loss_and_gradient, sample, value_loss_and_gradient
from hpcrl.rl.train import train
from hpcrl.rl.vector.make import make_vector
from hpcrl.telemetry.phases import PhaseClock
from tests.rl.builders import Counter, Reports, Target, first_weights, made_of
from tests.rl.cases import gumbel, normal, vpg_batch
from tests.rl.test_ppo import by_definition, random_rollout

DISCRETE = Space(3, 4)
CONTINUOUS = Space(3, 2, bounds=((-1.0, 1.0), (-2.0, 2.0)))
SETTINGS = Settings(hidden=(5, 6))
BOTH = pytest.mark.parametrize("space", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])


def weights64(space: Space, seed: int = 0) -> dict[str, dict[str, NDArray[Any]]]:
    drawn = first_weights(made_of("vpg", SETTINGS, space), np.random.default_rng(seed))
    return {group: {name: array.astype(np.float64) for name, array in each.items()} for group, each in drawn.items()}


def check_gradients(loss_and_gradient: Any, weights: Weights, given: Arrays) -> None:
    _, gradients, _ = loss_and_gradient(weights, given, SETTINGS)
    assert set(gradients) == set(weights)
    for name, array in weights.items():
        for index in np.ndindex(array.shape):
            values = []
            for sign in (1, -1):
                array[index] += sign * 1e-6
                values.append(loss_and_gradient(weights, given, SETTINGS)[0])
                array[index] -= sign * 1e-6
            assert gradients[name][index] == pytest.approx((values[0] - values[1]) / 2e-6, abs=2e-7), name


@BOTH
def test_gradients_by_finite_differences(space: Space) -> None:
    weights, given = weights64(space), vpg_batch(np.random.default_rng(1), space, 40)
    if space.continuous:
        weights["actor"]["log_std"] += [0.3, -0.6]
    check_gradients(policy_loss_and_gradient, weights["actor"], given)
    check_gradients(value_loss_and_gradient, weights["critic"], given)


def test_losses_by_hand() -> None:
    """Without hidden layers and with weights of zero: means of 0, standard deviations of 1 and 2, values of 0."""
    weights = first_weights(made_of("vpg", Settings(hidden=()), Space(1, 2, bounds=((-1, 1),) * 2)))
    zeros = {group: {name: np.zeros_like(array) for name, array in each.items()} for group, each in weights.items()}
    zeros["actor"]["log_std"][:] = [0.0, np.log(2)]
    actions = np.array([[1.0, 2.0], [0.0, 0.0]], np.float32)
    given = (np.zeros((2, 1), np.float32), actions, np.array([3.0, -1.0], np.float32), np.array([2.0, 1.0], np.float32))
    # The densities of N(0, 1) and N(0, 2) are multiplied.
    peak = 1 / np.sqrt(2 * np.pi) * 1 / np.sqrt(8 * np.pi)
    logs = np.log(peak * np.exp(-0.5) * np.exp(-0.5)), np.log(peak)
    loss = policy_loss_and_gradient(zeros["actor"], given, SETTINGS)[0]
    assert loss == pytest.approx(-(3 * logs[0] - logs[1]) / 2, rel=1e-6)
    assert value_loss_and_gradient(zeros["critic"], given, SETTINGS)[0] == pytest.approx((4 + 1) / 2)


def test_samples_have_the_distribution_of_the_policy() -> None:
    draw, count = np.random.default_rng(0), 40_000
    observations = np.repeat(draw.normal(size=(1, 3)), count, axis=0)
    weights = weights64(DISCRETE, 3)
    actions, logs, values = sample(observations, gumbel(draw, count, 4), SETTINGS, weights["actor"], weights["critic"])
    wanted = np.array([np.exp(logs[actions == action][0]) for action in range(4)])
    assert wanted.sum() == pytest.approx(1)
    np.testing.assert_allclose(np.bincount(actions) / count, wanted, atol=4 * np.sqrt(0.25 / count))
    assert len(set(values)) == 1

    weights = weights64(CONTINUOUS, 3)
    weights["actor"]["log_std"][:] = [-0.5, 0.7]
    actions, logs, _ = sample(observations, normal(draw, count), SETTINGS, weights["actor"], weights["critic"])
    mean = specification.greedy(observations[:1], SETTINGS, weights["actor"])[0]
    deviations = np.exp([-0.5, 0.7])
    np.testing.assert_allclose(actions.mean(axis=0), mean, atol=4 * deviations.max() / np.sqrt(count))
    np.testing.assert_allclose(actions.std(axis=0), deviations, rtol=0.02)
    # Log-probabilities are those that the loss gives to the same actions, whose mean is minus the entropy.
    given = (observations, actions, np.ones(count), np.zeros(count))
    assert policy_loss_and_gradient(weights["actor"], given, SETTINGS)[0] == pytest.approx(-logs.mean(), rel=1e-6)
    assert -logs.mean() == pytest.approx(np.log(2 * np.pi * np.e) + 0.2, abs=0.02)


def rewards_to_go(rollout: Rollout, last: NDArray[Any], gamma: float) -> NDArray[Any]:
    """Sums over the rest of each episode, with the value of what follows where it was cut."""
    steps, count = rollout.rewards.shape
    found = np.zeros((steps, count))
    for step, place in itertools.product(range(steps), range(count)):
        factor = 1.0
        for later in range(step, steps):
            found[step, place] += factor * rollout.rewards[later, place]
            factor *= gamma
            if rollout.ended[later, place]:
                found[step, place] += factor * (1 - rollout.terminated[later, place]) * rollout.following[later, place]
                break
        else:
            found[step, place] += factor * last[place]
    return found


class Watched(Learner):
    """The NumPy learner; keeps the step, batch and rate of each update from the end of its warming up."""

    def __init__(self, made: Algorithm, weights: dict[str, Weights]) -> None:
        super().__init__(made, specification, weights)
        self.taken: list[tuple[str, Arrays, float]] = []

    def load_state(self, state: Weights) -> None:
        super().load_state(state)
        self.taken = []

    def update(self, step: str, batch: Arrays, learning_rate: float) -> Arrays:
        self.taken.append((step, tuple(np.array(array) for array in batch), learning_rate))
        return super().update(step, batch, learning_rate)


class Steered(Counter):
    """Takes two real numbers, and keeps them."""

    def __init__(self) -> None:
        super().__init__(5, cut=True)
        self.action_space = SimpleNamespace(shape=(2,), dtype=np.dtype(np.float32), low=[-1, -2], high=[1, np.inf])


SMALL = Settings(
    hidden=(8,), total_steps=60, environments=2, rollout_steps=10, value_steps=3, evaluation_interval=60,
    evaluation_episodes=2, final_learning_rate=0.0,
)  # fmt: skip


def trained(settings: Settings, environment: Any, space: Space) -> tuple[Watched, list[Any], Any]:
    """Return the learner, the environments of rollouts, and the training's loop."""
    made = made_of("vpg", settings, space)
    learner, played = Watched(made, first_weights(made)), []

    def make_environment() -> Any:
        played.append(environment())
        return played[-1]

    others = [environment() for _ in range(settings.evaluation_episodes)]
    run = Run(1, Reports(), PhaseClock())
    training = assemble(made, learner, make_environment, others, run, "hpcrl.rl.loops.on_policy")
    train(training)
    return learner, played, training.loop


def test_a_rollout_is_one_batch_of_one_policy_step_and_many_value_steps() -> None:
    learner, _, _ = trained(SMALL, Counter, Space(1, 2))
    assert [step for step, _, _ in learner.taken] == 3 * ["policy", "value", "value", "value"]
    rates = [rate for step, _, rate in learner.taken if step == "policy"]
    assert rates == pytest.approx([3e-4, 2e-4, 1e-4])
    assert {rate for step, _, rate in learner.taken if step == "value"} == {1e-3}
    for _, (observations, actions, gains, returns), _ in learner.taken:
        assert (observations.shape, actions.shape, returns.shape) == ((20, 1), (20,), (20,))
        assert (gains.mean(), gains.std()) == pytest.approx((0, 1), abs=1e-5)


def test_values_learn_the_rewards_of_the_rest_of_an_episode() -> None:
    """A reward of 1 in each of four steps, whatever the critic says of the states between."""
    learner, _, _ = trained(replace(SMALL, rollout_steps=8, total_steps=16), Counter, Space(1, 2))
    _, (observations, _, _, returns), _ = learner.taken[0]
    wanted = [sum(0.99**step for step in range(4 - int(shown))) for shown in observations[:, 0]]
    np.testing.assert_allclose(returns, wanted, rtol=1e-5)


def test_returns_are_those_of_their_definition() -> None:
    draw = np.random.default_rng(0)
    rollout, last = random_rollout(draw), draw.normal(size=5).astype(np.float32)
    returns = advantages(rollout, last, 0.9, Settings().returns_lambda) + rollout.values
    np.testing.assert_allclose(returns, rewards_to_go(rollout, last, 0.9), atol=1e-5)
    found = advantages(rollout, last, 0.99, Settings().gae_lambda)
    np.testing.assert_allclose(found, by_definition(rollout, last, 0.99, 0.97), atol=1e-5)


@pytest.mark.parametrize("acting", ["framework", "numpy"])
def test_a_critic_s_values_are_those_of_its_newest_weights(acting: str) -> None:
    """Returns of the second rollout have the values of what follows its last step, which the first update has changed."""
    settings = replace(SMALL, total_steps=40, value_learning_rate=0.1, value_steps=50, acting=acting)
    learner, _, _ = trained(settings, lambda: Counter(1_000), Space(1, 2))
    (_, first, _), (_, second, _) = (taken for taken in learner.taken if taken[0] == "policy")
    assert abs(first[3][first[0][:, 0] == 9] - 1).max() < 1
    assert (second[3][second[0][:, 0] == 19] - 1 > 2).all()


@pytest.mark.parametrize("acting", ["framework", "numpy"])
def test_continuous_actions_reach_the_environment_as_they_are_learnt_from(acting: str) -> None:
    settings = replace(SMALL, total_steps=1_000, rollout_steps=500, evaluation_interval=1_000, acting=acting)
    space = Space(1, 2, bounds=((-1, 1), (-2, np.inf)))
    learner, played, loop = trained(settings, Steered, space)
    taken = [np.stack(environment.actions) for environment in played]
    assert {array.dtype for array in taken} == {np.dtype(np.float32)}
    _, (observations, actions, _, _), _ = learner.taken[0]
    assert sorted(map(tuple, np.concatenate(taken))) == sorted(map(tuple, actions))
    first = first_weights(made_of("vpg", settings, space))["actor"]
    noise = (actions - specification.greedy(observations, settings, first)) / np.exp(-0.5)
    np.testing.assert_allclose([noise.mean(axis=0), noise.std(axis=0)], [[0, 0], [1, 1]], atol=4 / np.sqrt(1_000))
    # Evaluations take the means.
    np.testing.assert_allclose(loop.act(np.ones((2, 1), np.float32)), learner.act(np.ones((2, 1), np.float32)))


def test_processes_take_continuous_actions() -> None:
    make, draw = partial(gymnasium_environment, "Pendulum-v1", 30), np.random.default_rng(0)
    sync, processes = (make_vector(stepping, make, 3) for stepping in ("sync", "processes"))
    try:
        np.testing.assert_array_equal(sync.reset([1, 2, 3]), processes.reset([1, 2, 3]))
        for _ in range(40):
            actions = draw.normal(size=(3, 1)).astype(np.float32)
            for wanted, found in zip(sync.step(actions), processes.step(actions), strict=True):
                np.testing.assert_array_equal(wanted, found)
    finally:
        processes.close()


def test_the_space_of_an_environment() -> None:
    assert algorithm_on("vpg", Steered(), SMALL).space.bounds == ((-1.0, 1.0), (-2.0, np.inf))
    with pytest.raises(UsageError, match="ppo: expected an environment with discrete actions, got continuous ones"):
        algorithm_on("ppo", Steered(), SMALL)
    several = Steered()
    several.action_space = MultiDiscrete([2, 2])
    with pytest.raises(UsageError, match=r"vpg: expected .* discrete or continuous actions, got MultiDiscrete ones"):
        algorithm_on("vpg", several, SMALL)
    several.action_space = Box(-1, 1, (2, 2), np.float32)
    with pytest.raises(UsageError, match=r"vpg: expected .* actions, got Box \[2, 2\] float32 ones"):
        algorithm_on("vpg", several, SMALL)


def test_what_ranks_cannot_share() -> None:
    wrong = fault(replace(SMALL, environments=3), 2)
    assert wrong == ("environments", "2 ranks cannot share environments 3: expected a multiple of 2")
    assert fault(SMALL, 2) is None


def test_continuous_actions_find_their_target() -> None:
    """The mean moves to the target, and the standard deviations fall: exploring costs reward."""
    settings = Settings(
        hidden=(8,), total_steps=60_000, environments=10, rollout_steps=20, learning_rate=1e-2, value_steps=5,
        evaluation_interval=60_000, evaluation_episodes=1,
    )  # fmt: skip
    training = make_training("vpg", settings, "numpy", "eager", Target, Run(1, Reports(), PhaseClock()))
    train(training)
    np.testing.assert_allclose(training.loop.act(np.zeros((1, 1), np.float32))[0], [0.7, -0.4], atol=0.1)
    assert (training.learner.weights("actor")["log_std"] < -1).all()


def test_the_return_on_cartpole_rises_threefold() -> None:
    """At ten times Spinning Up's learning rate of the policy, within 30,000 steps; the first epoch is the untrained policy's."""
    settings = Settings(
        total_steps=30_000, rollout_steps=2_000, learning_rate=3e-3, final_learning_rate=3e-3,
        evaluation_interval=30_000, evaluation_episodes=1,
    )  # fmt: skip
    reports = Reports()
    make = partial(gymnasium_environment, "CartPole-v1", None)
    train(make_training("vpg", settings, "numpy", "eager", make, Run(1, reports, PhaseClock())))
    first = [value for step, value, _ in reports.episodes if step <= 2_000]
    last = [value for step, value, _ in reports.episodes if step > 28_000]
    assert np.mean(first) < 40
    assert np.mean(last) > 3 * np.mean(first)
