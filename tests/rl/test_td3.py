"""TD3: its specification against independent references, its loop seen from outside, and what it learns."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hpcrl.catalogue.actions import bounds_fault
from hpcrl.catalogue.algorithms.td3 import Settings, fault
from hpcrl.errors import UsageError
from hpcrl.rl.algorithms.td3 import Memory
from hpcrl.rl.envs.bounded import Bounded, bounded_environment
from hpcrl.rl.envs.make import gymnasium_environment
from hpcrl.rl.frameworks.numpy.core import Learner
from hpcrl.rl.interfaces import Algorithm, Arrays, Space, Weights
from hpcrl.rl.make import Training, algorithm_on, assemble, make_training
from hpcrl.rl.runs import Result, Run
from hpcrl.rl.schedules import rate_of, rates_of
from hpcrl.rl.specification import td3 as specification
from hpcrl.rl.specification.td3 import actor_loss_and_gradient, critic_loss_and_gradient
from hpcrl.rl.train import train
from hpcrl.telemetry.phases import PhaseClock
from tests.builders import built_environment
from tests.rl.builders import Counter, Dial, Rank, Reports, Target, first_weights, made_of
from tests.rl.cases import td3_batch

ROOT = Path(__file__).parents[2]
SPACE = Space(3, 2, bounds=((-1.0, 1.0), (-1.0, 1.0)))
SMALL = Settings(
    hidden=(8,), total_steps=60, batch_size=16, buffer_size=500, random_steps=30, learning_starts=10, train_interval=5,
    updates=5, evaluation_interval=60, evaluation_episodes=2, final_learning_rate=0.0,
)  # fmt: skip


def weights64(settings: Settings, seed: int = 0) -> dict[str, Weights]:
    drawn = first_weights(made_of("td3", settings, SPACE), np.random.default_rng(seed))
    return {group: {name: array.astype(np.float64) for name, array in each.items()} for group, each in drawn.items()}


def check_gradients(
    loss_and_gradient: Any, weights: Weights, given: Arrays, settings: Settings, *uses: Weights
) -> None:
    _, gradients, _ = loss_and_gradient(weights, given, settings, *uses)
    assert set(gradients) == set(weights)
    for name, array in weights.items():
        for index in np.ndindex(array.shape):
            values = []
            for sign in (1, -1):
                array[index] += sign * 1e-6
                values.append(loss_and_gradient(weights, given, settings, *uses)[0])
                array[index] -= sign * 1e-6
            assert gradients[name][index] == pytest.approx((values[0] - values[1]) / 2e-6, abs=2e-7), name
    assert max(np.abs(array).max() for array in gradients.values()) > 1e-2


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_gradients_by_finite_differences(activation: str) -> None:
    settings = Settings(hidden=(5, 6), activation=activation)
    weights, others = weights64(settings), weights64(settings, 1)
    given = td3_batch(np.random.default_rng(1), SPACE, 40)
    check_gradients(critic_loss_and_gradient, weights["critics"], given, settings, others["actor"], others["critics"])
    check_gradients(actor_loss_and_gradient, weights["actor"], given, settings, weights["critics"])


def linear(state: float, action: float, bias: float, name: str) -> Weights:
    """Return a critic without hidden layers."""
    weight = np.array([[state, action]])
    return {f"{name}.layers.0.weight": weight, f"{name}.layers.0.bias": np.array([bias])}


@pytest.mark.parametrize(
    ("bias", "noise", "wanted"),
    [
        (0.0, 10.0, 2.0),  # noise of 10 x 0.2 is clipped to 0.5: 1 + 0.5 x min(2.5, 2)
        (0.0, 1.0, 1.7),  # 0.2: 1 + 0.5 x min(2.2, 1.4)
        (0.0, -10.0, 1.0),  # -0.5: 1 + 0.5 x min(1.5, 0)
        (100.0, 10.0, 2.5),  # an action of 1 is the largest: 1 + 0.5 x min(3, 3)
    ],
)
def test_losses_by_hand(bias: float, noise: float, wanted: float) -> None:
    """The copies say a + 2 and 2 a + 1 of an action a; the critics say 0 and 1."""
    settings = Settings(hidden=(), gamma=0.5)
    actor = {"layers.0.weight": np.zeros((1, 1)), "layers.0.bias": np.array([bias])}
    copies = linear(0, 1, 2, "critic1") | linear(0, 2, 1, "critic2")
    critics = linear(0, 0, 0, "critic1") | linear(0, 0, 1, "critic2")
    ones = np.ones((2, 1), np.float32)
    given = (ones, ones, np.ones(2), ones, np.array([0, 1], np.float32), noise * ones)
    np.testing.assert_allclose(specification.targets(actor, copies, given, settings), [wanted, 1.0])
    loss, _, _ = critic_loss_and_gradient(critics, given, settings, actor, copies)
    assert loss == pytest.approx((wanted**2 + 1) / 2 + (wanted - 1) ** 2 / 2)
    # The policy's loss is minus what the first critic says of its action.
    assert actor_loss_and_gradient(actor, given, settings, copies)[0] == pytest.approx(-np.tanh(bias) - 2)


class Watched(Learner):
    """The NumPy learner; keeps what it was asked from the end of its warming up."""

    def __init__(self, made: Algorithm, weights: dict[str, Weights]) -> None:
        super().__init__(made, specification, weights)
        self.taken: list[str] = []
        self.rates: dict[str, list[float]] = {"critic": [], "actor": []}
        self.batches: list[Arrays] = []

    def load_state(self, state: Weights) -> None:
        super().load_state(state)
        self.taken, self.rates, self.batches = [], {"critic": [], "actor": []}, []

    def update(self, step: str, batch: Arrays, learning_rate: float) -> Arrays:
        self.taken.append(step)
        self.rates[step].append(learning_rate)
        if step == "critic":
            self.batches.append(tuple(np.array(array) for array in batch))
        return super().update(step, batch, learning_rate)

    def sync(self, target: str, share: float = 1.0) -> None:
        self.taken.append(target)
        super().sync(target, share)


def watched(settings: Settings, environment: Any = Dial, seed: int = 1, collective: Rank | None = None) -> Any:
    """Train in an environment of actions from -1 to 1; return learner, first weights, the environments, and the loop."""
    played = [environment() for _ in range(settings.evaluation_episodes + 1)]
    own, *others = played
    space = Space(1, own.action_space.shape[0], bounds=((-1.0, 1.0),) * own.action_space.shape[0])
    made = made_of("td3", settings, space)
    first = first_weights(made)
    learner = Watched(made, first)
    run = Run(seed, Reports(), PhaseClock(), collective)
    training = assemble(made, learner, lambda: own, others, run, "hpcrl.rl.loops.off_policy")
    train(training)
    return SimpleNamespace(learner=learner, first=first, played=played, loop=training.loop)


@pytest.mark.parametrize(("interval", "updates"), [(5, 5), (1, 1), (5, 3)])
def test_the_policy_learns_at_every_second_update_and_the_copies_follow_it(interval: int, updates: int) -> None:
    """Counted over the training: with one update in each interval, too."""
    settings = replace(SMALL, train_interval=interval, updates=updates)
    taken = watched(settings).learner.taken
    pattern = ["critic", "actor", "target_actor", "target_critics", "critic"]
    count = len([step for step in range(10, 61) if step % interval == 0]) * updates
    wanted = (pattern * count)[: len(taken)]
    assert taken == wanted
    assert taken.count("critic") == count


def test_a_longer_delay() -> None:
    taken = watched(replace(SMALL, policy_delay=3)).learner.taken
    assert taken[:8] == ["critic", "actor", "target_actor", "target_critics", "critic", "critic", "critic", "actor"]


def test_copies_move_by_their_share() -> None:
    """One update: of the critics, then of the policy, then the copies are 0.005 of the way from the first weights."""
    settings = replace(SMALL, total_steps=10, train_interval=10, updates=1, evaluation_interval=10)
    run = watched(replace(settings, final_value_learning_rate=0.1, final_learning_rate=0.1))
    for group, first in run.first.items():
        own, copy = run.learner.weights(group), run.learner.weights(f"target_{group}")
        for name, array in first.items():
            assert np.abs(own[name] - array).max() > 0.05, name
            np.testing.assert_allclose(copy[name], array + 0.005 * (own[name] - array), atol=1e-7)


def test_policy_and_critics_have_learning_rates_of_their_own() -> None:
    rates = watched(replace(SMALL, final_value_learning_rate=2e-3)).learner.rates
    steps = np.repeat(np.arange(10, 61, 5), 5)
    np.testing.assert_allclose(rates["critic"], 1e-3 + 1e-3 * steps / 60)
    np.testing.assert_allclose(rates["actor"], 1e-3 - 1e-3 * steps[::2] / 60)


def test_transitions_have_the_actions_that_were_taken() -> None:
    run = watched(replace(SMALL, total_steps=200, evaluation_interval=200), partial(Dial, 4, numbers=2))
    taken = np.stack(run.played[0].actions)
    assert taken.shape == (200, 2) and taken.dtype == np.float32
    known = {tuple(action) for action in taken}
    for observations, actions, rewards, following, terminated, noise in run.learner.batches:
        assert actions.shape == noise.shape == (16, 2)
        assert {tuple(action) for action in actions} <= known
        np.testing.assert_array_equal(following, observations + 1)
        np.testing.assert_array_equal(terminated, following[:, 0] == 4)
        assert (rewards == 1).all()
    noise = np.concatenate([batch[-1] for batch in run.learner.batches])
    np.testing.assert_allclose([noise.mean(), noise.std()], [0, 1], atol=0.05)
    assert len({batch[-1].tobytes() for batch in run.learner.batches}) == len(run.learner.batches)


@pytest.mark.parametrize("acting", ["framework", "numpy"])
def test_exploring_is_random_at_first_and_then_near_the_policy(acting: str) -> None:
    settings = replace(
        SMALL, total_steps=4_000, random_steps=2_000, learning_starts=5_000, evaluation_interval=4_000, acting=acting
    )
    run = watched(settings, partial(Dial, 1, numbers=2))
    taken = np.stack(run.played[0].actions)
    first, later = taken[:2_000], taken[2_000:]
    np.testing.assert_allclose(first.mean(axis=0), 0, atol=0.06)
    np.testing.assert_allclose(first.std(axis=0), 2 / np.sqrt(12), atol=0.03)  # uniform in 2
    policy = specification.greedy(np.zeros((1, 1), np.float32), settings, run.first["actor"])[0]
    np.testing.assert_allclose(later.mean(axis=0), policy, atol=0.01)
    np.testing.assert_allclose(later.std(axis=0), 0.1, atol=0.01)
    # Evaluations are without noise.
    np.testing.assert_allclose(run.played[1].actions, [policy], atol=1e-6)
    # The policy never acts in the first part.
    wild = watched(replace(settings, action_noise=5.0), partial(Dial, 1, numbers=2))
    assert np.abs(np.stack(wild.played[0].actions)).max() == 1
    np.testing.assert_array_equal(np.stack(wild.played[0].actions)[:2_000], first)


def memory_of(settings: Settings, seed: int = 1, rank: int = 0) -> Memory:
    run = Run(seed, Reports(), PhaseClock(), Rank(rank) if rank else None)
    found = Memory(made_of("td3", settings, SPACE), 8, run)
    for number in range(6):
        shown = np.full(3, number, np.float32)
        found.add(shown, np.full(2, number / 10, np.float32), number, shown + 1, number == 5)
    return found


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_target_noise(shared: bool, kind: str) -> None:
    """Uniform noise, from 0 to 1 and so always positive, and the same noise for an interval: faults of published code."""
    settings = Settings(hidden=(4,), target_noise_kind=kind, shared_noise=shared)
    at_once, one = memory_of(settings), memory_of(settings)
    draws = [np.random.default_rng(0) for _ in range(2)]
    for step in (50, 100):
        batches = at_once.sample_many(4, 500, draws[0], step)
        for number in range(4):
            for array, stacked in zip(one.sample(500, draws[1], step), batches, strict=True):
                np.testing.assert_array_equal(array, stacked[number])
        noise = batches[-1]
        assert (len({each.tobytes() for each in noise}) == 1) == shared
        wanted = (0, 1) if kind == "normal" else (0.5, 1 / np.sqrt(12))
        np.testing.assert_allclose((noise.mean(), noise.std()), wanted, atol=0.1)
        assert (noise.min() >= 0) == (kind == "uniform")
        assert noise.dtype == np.float32
    again = at_once.sample_many(1, 500, draws[0], 150)[-1]
    assert again.tobytes() not in {each.tobytes() for each in noise}


def test_a_memory_goes_on_from_its_checkpoint() -> None:
    first, other, draw = memory_of(Settings()), memory_of(Settings(), 5), np.random.default_rng(0)
    first.sample(7, draw)
    other.load_state(first.state())
    other.load_facts(first.facts())
    for wanted, found in zip(*(each.sample(7, np.random.default_rng(2)) for each in (first, other)), strict=True):
        np.testing.assert_array_equal(wanted, found)


def test_ranks_and_seeds_have_noise_of_their_own() -> None:
    drawn = [
        memory_of(Settings(), *which).sample(5, np.random.default_rng(0))[-1].tobytes()
        for which in ((1, 0), (1, 1), (2, 0))
    ]
    assert len(set(drawn)) == 3


def trained(settings: Settings, environment: Any, seed: int = 1, **extra: Any) -> tuple[Training, Result, Reports]:
    reports = Reports()
    training = make_training("td3", settings, "numpy", "eager", environment, Run(seed, reports, PhaseClock()))
    return training, train(training, **extra), reports


@pytest.mark.parametrize("stop", [57, 213])
def test_a_resumed_run_is_the_run_that_was_not_stopped(tmp_path: Path, stop: int) -> None:
    """To the last bit, where an episode is one step long; the stop at 213 lies between two updates of the policy."""
    settings = replace(SMALL, total_steps=400, updates=3, evaluation_interval=100, random_steps=100)
    whole, wanted, _ = trained(settings, Target)
    asked, file = iter(range(10**6)), tmp_path / "c.npz"
    _, first, _ = trained(settings, Target, stop=lambda: next(asked) == stop, checkpoint_file=file)
    assert (first.outcome, first.steps) == ("preempted", stop)
    rest, found, _ = trained(settings, Target, checkpoint_file=file)
    assert found == wanted
    state = rest.learner.state()
    assert all(state[name].tobytes() == array.tobytes() for name, array in whole.learner.state().items())


def test_a_run_that_does_not_wait_learns_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    monkeypatch.setattr(Learner, "synchronize", lambda self: waits.append(1))
    states = []
    for hasty in (False, True):
        before = len(waits)
        training, _, _ = trained(replace(SMALL, unsynchronized=hasty), Target)
        states.append(training.learner.state())
        assert len(waits) - before == (1 if hasty else 12)  # once after compiling
    assert all(array.tobytes() == states[1][name].tobytes() for name, array in states[0].items())


@pytest.mark.slow
def test_jax_dispatches_asynchronously_only_where_it_is_asked_to() -> None:
    program = (
        "import sys; from hpcrl.rl.frameworks import configure, dispatch_asynchronously; sys.argv[1:] and dispatch_asynchronously('jax'); configure('jax'); "
        "import jax; jax.numpy.ones(3).sum(); print(jax.config.read('jax_cpu_enable_async_dispatch'))"
    )
    words = [built_environment("jax").path / "bin/python", "-c", program]
    said = [
        subprocess.run(
            [*words, *more], capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
        ).stdout.strip()
        for more in ([], ["x"])
    ]
    assert said == ["False", "True"]


@pytest.mark.parametrize(("final", "last"), [(None, 3e-4), (1e-3, 1e-3), (0.0, 0.0)])
def test_a_rate_without_a_final_one_stays(final: float | None, last: float) -> None:
    step = made_of("td3", Settings(), SPACE).steps[-1]
    name = step.rate
    settings = Settings(**{name: 3e-4, f"final_{name}": final, "total_steps": 10})
    assert rates_of(step, settings) == (3e-4, last)
    assert rate_of(step, settings, 0) == 3e-4
    assert rate_of(step, settings, 10) == last


QUICK = Settings(
    total_steps=1_500, hidden=(16,), learning_rate=1e-2, value_learning_rate=1e-2, gamma=0.5, batch_size=32, random_steps=200,
    learning_starts=100, train_interval=10, updates=10, target_share=0.1, evaluation_interval=1_500, evaluation_episodes=2,
)  # fmt: skip


def test_an_episode_that_is_cut_off_is_not_one_that_ended() -> None:
    """A reward of 1 for ever is worth 1 / (1 - 0.5) = 2; with truncation taken for an end it would be worth 1.5."""
    shown = np.zeros((1, 1), np.float32)
    for cut, wanted in ((True, 2.0), (False, 1.5)):
        training, _, _ = trained(QUICK, partial(Dial, 2, cut=cut, blind=cut))
        actions = training.learner.act(shown)
        outputs = specification.q_values(training.learner.weights("critics"), shown, actions, QUICK)
        np.testing.assert_allclose([values[-1][0, 0] for values in outputs], wanted, atol=0.1)


def test_the_policy_finds_its_target() -> None:
    training, _, _ = trained(QUICK, Target)
    np.testing.assert_allclose(training.loop.act(np.zeros((1, 1), np.float32))[0], [0.7, -0.4], atol=0.1)


class Wide(Counter):
    """Takes a number from -1 to 3 and one from 10 to 12, and keeps them; an evaluation's return is that of its actions."""

    def __init__(self) -> None:
        super().__init__(1)
        self.action_space = SimpleNamespace(shape=(2,), dtype=np.dtype(np.float32), low=[-1, 10], high=[3, 12])


def test_actions_have_the_range_of_the_environment() -> None:
    played: list[Wide] = []

    def make() -> Wide:
        played.append(Wide())
        return played[-1]

    settings = replace(SMALL, total_steps=2_000, random_steps=1_000, learning_starts=3_000, evaluation_interval=2_000)
    training, _, _ = trained(settings, make)
    taken = np.stack(played[-1].actions)  # the last that was made is the one to learn in
    assert len(taken) == 2_000 and taken.dtype == np.float32
    np.testing.assert_allclose(taken[:1_000].mean(axis=0), [1, 11], atol=0.15)
    np.testing.assert_allclose(taken.min(axis=0), [-1, 10], atol=0.05)
    np.testing.assert_allclose(taken.max(axis=0), [3, 12], atol=0.05)
    # Noise is a share of half the range: 0.1 x 2 and 0.1 x 1.
    np.testing.assert_allclose(taken[1_000:].std(axis=0), [0.2, 0.1], atol=0.02)
    policy = training.learner.act(np.zeros((1, 1), np.float32))[0]
    np.testing.assert_allclose(played[0].actions, [[1, 11] + policy * [2, 1]], rtol=1e-6)


def test_rounding_does_not_lead_beyond_a_bound() -> None:
    inner = Wide()
    inner.action_space.low, inner.action_space.high = [-0.4, -0.1], [0.4, 0.7]
    outer = Bounded(inner)
    for value in (-1, 1):
        outer.step(np.full(2, value, np.float32))
    low, high = inner.actions
    assert (low >= np.float32([-0.4, -0.1])).all() and (high <= np.float32([0.4, 0.7])).all()
    np.testing.assert_allclose([low, high], [[-0.4, -0.1], [0.4, 0.7]], rtol=1e-6)
    assert isinstance(bounded_environment(lambda: inner), Bounded)
    unchanged = Target()
    assert bounded_environment(lambda: unchanged) is unchanged


def test_what_td3_cannot_learn() -> None:
    with pytest.raises(UsageError, match="td3: expected an environment with continuous actions, got discrete ones"):
        algorithm_on("td3", Counter(), SMALL)
    unbounded = Dial(high=np.inf)
    told = "td3: expected actions between finite bounds, got a number from -1 to inf"
    with pytest.raises(UsageError, match=told):
        trained(SMALL, lambda: unbounded)
    largest = float(np.finfo(np.float32).max)
    assert bounds_fault(Dial(low=-largest, high=largest).action_space)
    assert bounds_fault(Dial(low=float("nan")).action_space)
    assert bounds_fault(Wide().action_space) is None


@pytest.mark.parametrize(
    ("changes", "ranks", "expected"),
    [
        ({"batch_size": 501}, 1, ("batch_size", "501: expected at most buffer_size, which is 500")),
        ({"batch_size": 15}, 2, ("batch_size", "2 ranks cannot share 15: expected a multiple of 2")),
        ({"train_interval": 2}, 4, ("train_interval", "4 ranks cannot share 2: expected at least 4")),
        ({}, 2, None),
    ],
)
def test_what_ranks_cannot_share(changes: dict[str, Any], ranks: int, expected: tuple[str, str] | None) -> None:
    assert fault(replace(SMALL, **changes), ranks) == expected


def test_two_ranks_share_a_run() -> None:
    first, second = (watched(SMALL, collective=Rank(rank)) for rank in (0, 1))
    taken: list[NDArray[Any]] = [np.stack(run.played[0].actions) for run in (first, second)]
    assert [len(actions) for actions in taken] == [30, 30]
    assert not np.array_equal(*taken)
    assert {len(batch[0]) for batch in first.learner.batches} == {8}
    assert first.learner.taken == second.learner.taken == watched(SMALL).learner.taken


def test_the_pendulum_swings_up() -> None:
    """A random policy has about -1,200. An upright start costs nothing, one that hangs about 120 to 250."""
    settings = Settings(
        total_steps=3_000, hidden=(64, 64), learning_rate=3e-3, final_learning_rate=3e-3, value_learning_rate=3e-3,
        final_value_learning_rate=3e-3, gamma=0.95, batch_size=64, random_steps=500, learning_starts=500, train_interval=1,
        updates=1, target_share=0.02, evaluation_interval=3_000,
    )  # fmt: skip
    _, result, reports = trained(settings, partial(gymnasium_environment, "Pendulum-v1", None))
    assert np.mean([value for step, value, _ in reports.episodes if step <= 500]) < -900
    assert result.final_score is not None and result.final_score > -600
