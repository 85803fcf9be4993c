"""PPO's specification against independent references: finite differences, and advantages by their definition."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hpcrl.catalogue.algorithms.ppo import Settings
from hpcrl.rl.interfaces import Space
from hpcrl.rl.rollout import Rollout, advantages
from hpcrl.rl.specification.ppo import loss_and_gradient, sample
from hpcrl.rl.weights import initial_weights
from tests.rl.builders import made_of
from tests.rl.cases import gumbel, ppo_batch

SPACE = Space(3, 4)


def weights64(seed: int = 0) -> dict[str, NDArray[Any]]:
    """Ten times larger actors than PPO's first ones, so that policies are not uniform."""
    made = made_of("ppo", Settings(hidden=(5, 6)), SPACE)
    drawn = initial_weights(made, np.random.default_rng(seed))["both"]
    return {name: array.astype(np.float64) * (10 if "actor.layers.2" in name else 1) for name, array in drawn.items()}


@pytest.mark.parametrize(("clip_values", "entropy"), list(itertools.product((False, True), (0.0, 0.5))))
def test_gradients_by_finite_differences(clip_values: bool, entropy: float) -> None:
    settings = Settings(hidden=(5, 6), clip_values=clip_values, entropy_weight=entropy)
    weights, draw = weights64(), np.random.default_rng(1)
    observations, _, _, *others = ppo_batch(draw, 40, 3)
    actions = draw.integers(0, 4, 40)
    logs = (np.log(0.25) + 0.3 * draw.normal(size=40)).astype(np.float32)
    given = (observations, actions, logs, *others)
    _, gradients, _ = loss_and_gradient(weights, given, settings)
    assert set(gradients) == set(weights)
    for name, array in weights.items():
        for index in np.ndindex(array.shape):
            values = []
            for sign in (1, -1):
                array[index] += sign * 1e-6
                values.append(loss_and_gradient(weights, given, settings)[0])
                array[index] -= sign * 1e-6
            assert gradients[name][index] == pytest.approx((values[0] - values[1]) / 2e-6, abs=2e-7), name


def test_the_loss_by_hand() -> None:
    """One action of two, with probability 1/2 now: log 2 more or less than before is a ratio of 2 or 1/2."""
    made = made_of("ppo", Settings(hidden=()), Space(1, 2))
    zeros = {
        name: np.zeros_like(array) for name, array in initial_weights(made, np.random.default_rng(0))["both"].items()
    }
    observations, ones = np.zeros((4, 1), np.float32), np.ones(4, np.float32)
    logs = np.log(np.array([0.25, 0.25, 1.0, 1.0], np.float32))
    gains = np.array([1, -1, 1, -1], np.float32)
    given = (observations, np.zeros(4, np.int64), logs, gains, 2 * ones, ones, np.array([0.2], np.float32))
    # Ratios 2, 2, 1/2, 1/2: the pessimist takes 1.2, 2, 1/2 and 0.8, with the sign of the advantage.
    policy = (-1.2 + 2 - 0.5 + 0.8) / 4
    settings = Settings(hidden=(), value_weight=0.5, entropy_weight=0.1)
    loss, _, (kl,) = loss_and_gradient(zeros, given, settings)
    assert loss == pytest.approx(policy + 0.5 * 4 - 0.1 * np.log(2), abs=1e-6)
    assert kl == pytest.approx(((1 - np.log(2)) + (-0.5 + np.log(2))) / 2, abs=1e-6)
    # Values were 1 and are 0: clipped to 0.8, nearer to the returns of 2, so that the larger error counts.
    clipped = Settings(hidden=(), value_weight=0.5, clip_values=True)
    assert loss_and_gradient(zeros, given, clipped)[0] == pytest.approx(policy + 0.5 * 4, abs=1e-6)


def test_samples_have_the_probabilities_of_the_policy() -> None:
    weights, draw = weights64(3), np.random.default_rng(0)
    settings, count = Settings(hidden=(5, 6)), 40_000
    observations = np.repeat(draw.normal(size=(1, 3)), count, axis=0)
    actions, logs, values = sample(observations, gumbel(draw, count, 4), settings, weights)
    shares = np.bincount(actions, minlength=4) / count
    wanted = np.array([np.exp(logs[actions == action][0]) for action in range(4)])
    assert wanted.sum() == pytest.approx(1)
    np.testing.assert_allclose(shares, wanted, atol=4 * np.sqrt(0.25 / count))
    assert len(set(values)) == 1


def by_definition(rollout: Rollout, last: NDArray[Any], gamma: float, weight: float) -> NDArray[Any]:
    """Sums over the rest of each episode, written as in the paper."""
    steps, count = rollout.rewards.shape
    estimates = np.zeros((steps, count))
    for step, place in itertools.product(range(steps), range(count)):
        factor = 1.0
        for later in range(step, steps):
            if rollout.ended[later, place]:
                value = 0.0 if rollout.terminated[later, place] else rollout.following[later, place]
            else:
                value = rollout.values[later + 1, place] if later + 1 < steps else last[place]
            delta = rollout.rewards[later, place] + gamma * value - rollout.values[later, place]
            estimates[step, place] += factor * delta
            if rollout.ended[later, place]:
                break
            factor *= gamma * weight
    return estimates


def random_rollout(draw: np.random.Generator, steps: int = 40, count: int = 5) -> Rollout:
    rollout = Rollout(steps, count, 3)
    rollout.rewards[:], rollout.values[:], rollout.following[:] = draw.normal(size=(3, steps, count))
    rollout.ended[:] = draw.random((steps, count)) < 0.2
    rollout.terminated[:] = rollout.ended * (draw.random((steps, count)) < 0.5)
    return rollout


def test_advantages_are_those_of_their_definition() -> None:
    draw = np.random.default_rng(0)
    rollout, last = random_rollout(draw), draw.normal(size=5).astype(np.float32)
    found = advantages(rollout, last, 0.9, 0.8)
    np.testing.assert_allclose(found, by_definition(rollout, last, 0.9, 0.8), atol=1e-5)
    # With lambda 1 advantage plus value is the discounted return, with 0 the error of one step.
    one = advantages(rollout, last, 0.9, 0.0)
    np.testing.assert_allclose(one, by_definition(rollout, last, 0.9, 0.0), atol=1e-5)


def test_a_truncated_episode_is_worth_what_would_follow() -> None:
    """A reward of 1 for ever at gamma 0.5 is worth 2, wherever the episode is cut."""
    rollout = Rollout(6, 1, 1)
    rollout.rewards[:], rollout.values[:], rollout.following[:] = 1, 2, 2
    rollout.ended[[2, 5]] = 1
    np.testing.assert_allclose(advantages(rollout, np.full(1, 9, np.float32), 0.5, 0.9), 0, atol=1e-6)
    rollout.terminated[2] = 1
    assert advantages(rollout, np.full(1, 9, np.float32), 0.5, 0.9)[2, 0] == -1
