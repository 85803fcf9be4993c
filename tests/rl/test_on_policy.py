"""The on-policy loop, seen from outside: environments whose values are known, and a learner that is watched."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hpcrl.catalogue.algorithms.ppo import Settings, fault
from hpcrl.errors import HpcrlError, UsageError
from hpcrl.rl.envs.make import gymnasium_environment
from hpcrl.rl.envs.probes import Probe
from hpcrl.rl.frameworks.numpy.core import Learner
from hpcrl.rl.interfaces import Algorithm, Arrays, Space, Weights
from hpcrl.rl.loops.scales import Scales
from hpcrl.rl.make import assemble, make_training
from hpcrl.rl.runs import Result
from hpcrl.rl.runs import Run as RunOfTraining
from hpcrl.rl.specification import ppo as specification
from hpcrl.rl.specification.networks import forward, named
from hpcrl.rl.train import train
from hpcrl.rl.vector.make import make_vector
from hpcrl.rl.weights import initial_weights
from hpcrl.telemetry.phases import PhaseClock
from tests.rl.builders import Counter, Rank, Reports, made_of
from tests.rl.test_loop import Blind

SMALL = Settings(
    total_steps=960, hidden=(16,), environments=4, rollout_steps=12, minibatch_size=16, epochs=3, gamma=0.5,
    evaluation_interval=240, evaluation_episodes=2,
)  # fmt: skip


class Watched(Learner):
    """The NumPy learner; keeps the batches of its updates from the end of its warming up."""

    def __init__(self, made: Algorithm, weights: dict[str, Weights]) -> None:
        super().__init__(made, specification, weights)
        self.batches: list[Arrays] = []
        self.rates: list[float] = []
        self.updated: Weights = {}  # what the last update was taken from

    def load_state(self, state: Weights) -> None:
        super().load_state(state)
        self.batches, self.rates = [], []

    def update(self, step: str, batch: Arrays, learning_rate: float) -> Arrays:
        self.batches.append(tuple(np.array(array) for array in batch))
        self.rates.append(learning_rate)
        self.updated = self.weights("both")
        return super().update(step, batch, learning_rate)


class Run:
    """One training of PPO: its result, its learner, and the environments of its rollouts."""

    def __init__(
        self,
        settings: Settings = SMALL,
        environment: Any = Counter,
        seed: int = 1,
        collective: Rank | None = None,
        **extra: Any,
    ) -> None:
        self.environments: list[Any] = []
        self.reports, self.clock = Reports(), PhaseClock()
        made = made_of("ppo", settings, Space(1, 2))
        weights = initial_weights(made, np.random.default_rng([seed, 0]))
        self.first, self.learner = weights["both"], Watched(made, weights)

        def make_environment() -> Any:
            self.environments.append(environment())
            return self.environments[-1]

        others = [environment() for _ in range(settings.evaluation_episodes)]
        run = RunOfTraining(seed, self.reports, self.clock, collective)
        training = assemble(made, self.learner, make_environment, others, run, "hpcrl.rl.loops.on_policy")
        self.result: Result = train(training, **extra)
        self.measures = training.loop.measures()

    def value(self, shown: float = 0.0) -> float:
        critic = named(self.learner.weights("both"), "critic")
        return float(forward(critic, np.array([[shown]], np.float32), "tanh")[-1][0, 0])


def same(first: Weights, second: Weights) -> bool:
    return all(array.tobytes() == second[name].tobytes() for name, array in first.items())


@pytest.mark.parametrize(
    ("number", "shown", "wanted"), [(1, [0.0], [1.0]), (2, [-1.0, 1.0], [-1.0, 1.0]), (3, [0.0, 1.0], [0.5, 1.0])]
)
def test_the_critic_learns_the_known_values(number: int, shown: list[float], wanted: list[float]) -> None:
    run = Run(replace(SMALL, learning_rate=1e-2, total_steps=4_800, evaluation_interval=4_800), lambda: Probe(number))
    assert [run.value(each) for each in shown] == pytest.approx(wanted, abs=0.1)


@pytest.mark.parametrize("number", [4, 5])
def test_the_actor_learns_the_better_action(number: int) -> None:
    run = Run(replace(SMALL, learning_rate=1e-2, total_steps=2_400, evaluation_interval=2_400), lambda: Probe(number))
    assert run.result.final_score == 1.0


def test_an_episode_that_is_cut_off_is_not_one_that_ended() -> None:
    """A reward of 1 for ever is worth 1 / (1 - 0.5) = 2; an end after every fifth step makes that less."""
    settings = replace(SMALL, learning_rate=1e-2, total_steps=4_800, evaluation_interval=4_800, gae_lambda=0.95)
    assert Run(settings, lambda: Blind(5, cut=True)).value() == pytest.approx(2.0, abs=0.1)
    ended = Run(settings, lambda: Blind(5)).value()
    # The mean over the five states of (1 - 0.5^k) / 0.5, k = 1 to 5.
    assert ended == pytest.approx(np.mean([2 * (1 - 0.5**k) for k in range(1, 6)]), abs=0.15)


def test_what_follows_is_worth_what_the_critic_says_of_it() -> None:
    """With lambda 0 a return is the reward and the value of what followed, also where the episode was cut off."""
    settings = replace(SMALL, epochs=1, minibatch_size=48, total_steps=48, gae_lambda=0.0)
    for cut, last in ((True, 1.0), (False, 0.0)):
        run = Run(settings, partial(Counter, 4, cut))
        ((observations, _, _, _, returns, _, _),) = run.learner.batches
        values = forward(named(run.first, "critic"), observations + 1, "tanh")[-1][:, 0]
        following = np.where(observations[:, 0] == 3, last * values, values)
        np.testing.assert_allclose(returns, 1 + 0.5 * following, atol=1e-5)


def test_every_transition_is_learnt_from_once_in_each_epoch() -> None:
    """960 steps are 20 rollouts of 48: 3 epochs of 3 minibatches each. A counter's observations tell its steps apart."""
    run = Run(environment=lambda: Counter(12))
    assert len(run.learner.batches) == 20 * 3 * 3
    for epoch in range(60):
        seen = np.concatenate([batch[0][:, 0] for batch in run.learner.batches[3 * epoch : 3 * epoch + 3]])
        assert sorted(seen) == sorted(np.repeat(np.arange(12), 4))
    orders = {b"".join(batch[0].tobytes() for batch in run.learner.batches[3 * n : 3 * n + 3]) for n in range(60)}
    assert len(orders) == 60


def test_advantages_of_a_minibatch_have_mean_0_and_deviation_1() -> None:
    gains = [batch[3] for batch in Run(environment=lambda: Counter(7)).learner.batches]
    assert max(abs(float(values.mean())) for values in gains) < 1e-5
    assert [float(values.std()) for values in gains] == pytest.approx([1.0] * len(gains), abs=1e-3)
    plain = Run(replace(SMALL, normalize_advantages=False), lambda: Counter(7)).learner.batches
    assert any(abs(float(batch[3].mean())) > 0.1 for batch in plain)


def test_rate_and_clip_range_fall_with_the_steps() -> None:
    run = Run(replace(SMALL, final_learning_rate=2e-4, final_clip_range=0.1))
    steps = np.repeat(np.arange(20) * 48, 9) / 960
    np.testing.assert_allclose(run.learner.rates, 1e-3 + (2e-4 - 1e-3) * steps)
    np.testing.assert_allclose([batch[-1][0] for batch in run.learner.batches], 0.2 - 0.1 * steps, rtol=1e-6)


def test_the_divergence_is_that_of_the_last_minibatch_from_the_policy_that_acted() -> None:
    once = replace(SMALL, epochs=1, minibatch_size=48, total_steps=48, evaluation_interval=48)
    assert Run(once).measures["divergence"] == pytest.approx(0.0, abs=1e-7)
    run = Run(replace(once, epochs=5))
    observations, actions, logs, *_ = run.learner.batches[-1]
    now = specification.log_softmax(forward(named(run.learner.updated, "actor"), observations, "tanh")[-1])
    ratio = np.exp(now[np.arange(48), actions] - logs)
    assert run.measures["divergence"] == pytest.approx(np.mean(ratio - 1 - np.log(ratio)), rel=1e-3)
    assert run.measures["divergence"] > 1e-6


@pytest.mark.parametrize(("rate", "told"), [(1e-3, False), (0.3, True)])
def test_a_policy_that_moves_far_in_each_rollout_is_told(rate: float, told: bool) -> None:
    run = Run(replace(SMALL, learning_rate=rate, final_learning_rate=rate), lambda: Probe(4))
    assert (run.measures["divergence"] > 0.1) == told
    assert told == any("a lower learning_rate or fewer epochs" in text for text in run.reports.events)


def test_what_was_sampled_is_what_the_policy_said() -> None:
    """In the first epoch no weight has changed: the stored log-probabilities and values are those of the first weights."""
    run = Run(replace(SMALL, epochs=1, minibatch_size=48, total_steps=48))
    (batch,) = run.learner.batches
    observations, actions, logs, _, _, values, _ = batch
    wanted = specification.log_softmax(forward(named(run.first, "actor"), observations, "tanh")[-1])
    np.testing.assert_allclose(logs, wanted[np.arange(48), actions], atol=1e-6)
    np.testing.assert_allclose(values, forward(named(run.first, "critic"), observations, "tanh")[-1][:, 0], atol=1e-6)
    assert set(actions) == {0, 1}


def test_episodes_and_steps_are_those_of_all_environments() -> None:
    run = Run(environment=lambda: Counter(7))
    assert run.result.steps == 960
    # 240 steps of each of the four: an episode ends at every seventh.
    assert run.reports.episodes == [(4 * 7 * number, 7.0, 7) for number in range(1, 35) for _ in range(4)]
    assert run.result.episodes == 34 * 4
    assert [step for step, _ in run.reports.evaluations] == [240, 480, 720, 960]


def test_seeds_environments_and_ranks_differ() -> None:
    first, again, other = (Run(seed=seed) for seed in (1, 1, 2))
    assert same(first.learner.weights("both"), again.learner.weights("both"))
    assert not same(first.learner.weights("both"), other.learner.weights("both"))
    actions = [np.concatenate([environment.actions for environment in run.environments]) for run in (first, other)]
    assert np.mean(actions[0] == actions[1]) < 0.7  # with the same noise nearly all are the same
    starts = [environment.seeds[0] for run in (first, other) for environment in run.environments]
    assert len(set(starts)) == 8
    assert all(environment.seeds[1:] == [None] * 60 for environment in first.environments)
    assert len({tuple(environment.actions) for environment in first.environments}) == 4
    ranks = [Run(collective=Rank(rank)) for rank in (0, 1)]
    assert same(ranks[0].first, ranks[1].first)
    assert [len(run.environments) for run in ranks] == [2, 2]
    assert len({environment.seeds[0] for run in ranks for environment in run.environments}) == 4
    assert {len(batch[1]) for batch in ranks[0].learner.batches} == {8}
    assert len(ranks[0].learner.batches) == len(first.learner.batches)
    assert (ranks[0].result.steps, ranks[1].reports.evaluations) == (960, [])


def test_warming_up_leaves_no_trace() -> None:
    run = Run(replace(SMALL, total_steps=1, rollout_steps=64, minibatch_size=256, evaluation_interval=1))
    assert same(run.learner.weights("both"), run.first)
    assert not any(array.any() for name, array in run.learner.state().items() if name.startswith("optimizer/"))


def test_observations_and_rewards_get_a_common_scale() -> None:
    """By the moments of all rows so far: observations by those before the rollout, rewards with those of the rollout."""
    settings = replace(SMALL, normalize_observations=True, normalize_rewards=True, gamma=0.9)
    draw = np.random.default_rng(0)
    scales = Scales(3, 4, settings, None)
    rows, returns, running = [], [], np.zeros(4)
    for number in range(5):
        observations = draw.normal(7, [1, 2, 3], (12, 4, 3)).astype(np.float32)
        rewards, ended = draw.normal(2, 5, (12, 4)).astype(np.float32), draw.random((12, 4)) < 0.2
        if number:
            mean, deviation = np.mean(rows, 0), np.std(rows, 0)
            np.testing.assert_allclose(scales.observations(observations), (observations - mean) / deviation, atol=1e-3)
        for reward, over in zip(rewards, ended, strict=True):
            scales.step(reward, over)
            running = 0.9 * running + reward
            returns.extend(running)
            running = np.where(over, 0, running)
        np.testing.assert_allclose(scales.rewards(rewards), (rewards / np.std(returns)).clip(-10, 10), rtol=1e-3)
        scales.learn(observations)
        rows.extend(observations.reshape(-1, 3))
    far = scales.observations(np.full((1, 3), 1e6, np.float32))
    assert far.tolist() == [[10.0, 10.0, 10.0]]
    again = Scales(3, 4, settings, None)
    again.load_state(scales.state())
    np.testing.assert_array_equal(again.observations(observations), scales.observations(observations))


@pytest.mark.parametrize(("centre", "spread"), [(0.0, 1.0), (1000.0, 0.02)])
def test_ranks_have_one_scale(centre: float, spread: float) -> None:
    """The moments are those of the rows of all ranks: here the other rank sees the same rows, moved by twice their spread."""

    class Other(Rank):
        def mean_array(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
            self.calls += 1
            return (
                values + np.float32(spread) if self.calls % 2 else values
            )  # the squares about the common mean are equal

    other = Other(0)
    other.calls = 0
    settings = replace(SMALL, normalize_observations=True)
    scales, alone = Scales(2, 4, settings, other), Scales(2, 8, settings, None)
    draw = np.random.default_rng(0)
    for _ in range(50):
        rows = (centre + spread * draw.normal(size=(12, 4, 2))).astype(np.float32)
        scales.learn(rows)
        alone.learn(np.concatenate([rows, rows + np.float32(2 * spread)], 1))
    np.testing.assert_allclose(scales.observations(rows), alone.observations(rows), atol=1e-2)


def test_policies_act_and_learn_on_the_scale_of_their_observations() -> None:
    run = Run(replace(SMALL, normalize_observations=True), lambda: Counter(6))
    first, second = (np.concatenate([batch[0][:, 0] for batch in run.learner.batches[n : n + 3]]) for n in (0, 9))
    assert sorted(first) == sorted(np.repeat(np.arange(6), 8))
    wanted = (np.repeat(np.arange(6), 8) - 2.5) / np.std(np.arange(6))
    np.testing.assert_allclose(sorted(second), wanted, atol=1e-4)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("acting", ["framework", "numpy"])
def test_a_resumed_run_is_the_run_that_was_not_stopped(tmp_path: Path, acting: str, scaled: bool) -> None:
    """To the last bit, where an episode is one step long: an environment's own state is not in a checkpoint."""
    settings = replace(SMALL, acting=acting, normalize_observations=scaled, normalize_rewards=scaled)
    file = tmp_path / "c.npz"
    whole = Run(settings, lambda: Probe(4), goal=1.0)
    asked = iter(range(10**6))
    first = Run(settings, lambda: Probe(4), goal=1.0, stop=lambda: next(asked) == 7, checkpoint_file=file)
    assert (first.result.outcome, first.result.steps) == ("preempted", 7 * 48)
    second = Run(settings, lambda: Probe(4), goal=1.0, checkpoint_file=file)
    assert same(second.learner.state(), whole.learner.state())
    assert first.reports.episodes + second.reports.episodes == whole.reports.episodes
    assert first.reports.evaluations + second.reports.evaluations == whole.reports.evaluations
    assert second.result == whole.result


def test_acting_in_numpy_is_acting_by_the_learner() -> None:
    runs = [Run(replace(SMALL, acting=acting), lambda: Probe(5)) for acting in ("framework", "numpy")]
    assert same(*(run.learner.weights("both") for run in runs))


def test_time_is_counted_where_it_is_spent() -> None:
    counts = Run().clock.counts
    assert counts["env_step"] == 240
    assert counts["act"] == 240 + 20
    assert counts["transfer"] == 180
    assert counts["update"] == 180 + 20
    assert counts["evaluate"] == 4


class Failing(Probe):
    def step(self, action: int) -> Any:
        raise ValueError("no more")


def actions_of(draw: np.random.Generator, count: int) -> NDArray[np.int64]:
    return draw.integers(0, 2, count)


def test_processes_step_as_one_process_does() -> None:
    make = partial(gymnasium_environment, "CartPole-v1", 25)
    sync, processes = (make_vector(stepping, make, 5) for stepping in ("sync", "processes"))
    draw, ends, cuts = np.random.default_rng(0), 0, 0
    try:
        np.testing.assert_array_equal(sync.reset([1, 2, 3, 4, 5]), processes.reset([1, 2, 3, 4, 5]))
        for _ in range(120):
            actions = actions_of(draw, 5)
            one, other = sync.step(actions), processes.step(actions)
            for wanted, found in zip(one, other, strict=True):
                np.testing.assert_array_equal(wanted, found)
            assert (one.observations[~one.ended] == one.last[~one.ended]).all()
            assert (np.abs(one.observations[one.ended]) <= 0.05).all()
            ends, cuts = ends + one.terminated.sum(), cuts + (one.ended & ~one.terminated).sum()
    finally:
        processes.close()
    assert ends > 5 and cuts > 0


def test_all_ways_of_stepping_are_the_same_training() -> None:
    make = partial(gymnasium_environment, "Doors-v0", 20, {"size": 5})
    made = [
        make_training(
            "ppo", replace(SMALL, stepping=stepping), "numpy", "eager", make, RunOfTraining(1, Reports(), PhaseClock())
        )
        for stepping in ("sync", "processes", "arrays")
    ]
    first, *others = [(train(each), each.learner.state()) for each in made]
    for result, weights in others:
        assert result == first[0] and same(weights, first[1])
    assert first[0].episodes > 20


def test_environments_that_are_not_there_as_arrays_are_named() -> None:
    with pytest.raises(UsageError, match="stepping arrays: there is no CartPole-v1 as NumPy arrays, only Doors-v0"):
        make_vector("arrays", partial(gymnasium_environment, "CartPole-v1", None), 2)


@pytest.mark.parametrize("stepping", ["processes", "pipes"])
def test_an_environment_that_fails_in_its_process_is_told(stepping: str) -> None:
    environments = make_vector(stepping, partial(Failing, 4), 2)
    environments.reset([1, 2])
    with pytest.raises(HpcrlError, match=f"stepping {stepping}: the environment failed: ValueError: no more"):
        environments.step(np.zeros(2, np.int64))
    environments.close()
    other = make_vector(stepping, partial(Probe, 4), 2)
    for process, _ in other._workers._processes:  # type: ignore[attr-defined]
        process.kill()
        process.join()
    with pytest.raises(HpcrlError, match=f"stepping {stepping}: a process of the environments ended"):
        other.reset([1, 2])
    other.close()


def test_what_ranks_and_minibatches_cannot_share() -> None:
    assert fault(Settings(), 1) is None and fault(Settings(), 2) is None
    assert "3 ranks cannot share environments 8" in str(fault(Settings(), 3))
    assert fault(Settings(environments=3, rollout_steps=16, minibatch_size=24), 2) is not None
    name, said = fault(Settings(minibatch_size=100), 1) or ("", "")
    assert name == "minibatch_size" and "100: expected a divisor of a rollout" in said and "8 x 32 = 256" in said
