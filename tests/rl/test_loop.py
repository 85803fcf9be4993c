"""The training loop, seen from outside: environments whose values and steps are known, and a learner that is watched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hpcrl.catalogue.algorithms.dqn import Settings
from hpcrl.rl import checkpoint
from hpcrl.rl.algorithms.dqn import algorithm
from hpcrl.rl.envs.probes import Probe
from hpcrl.rl.evaluation import evaluate
from hpcrl.rl.frameworks.numpy.core import Learner
from hpcrl.rl.interfaces import Algorithm, Arrays, Space, Weights
from hpcrl.rl.make import assemble
from hpcrl.rl.runs import Result
from hpcrl.rl.runs import Run as RunOfTraining
from hpcrl.rl.specification import dqn as specification
from hpcrl.rl.train import train
from hpcrl.rl.weights import initial_weights
from hpcrl.telemetry.phases import PhaseClock
from tests.rl.builders import Batch, Counter, Observation, Rank, Reports


class Blind(Counter):
    """Shows nothing: its value is one number."""

    def _shown(self) -> Observation:
        return np.zeros(1, np.float32)


class Numbered(Counter):
    """Pays the number of the step, counted over all episodes, so that every transition is told by its reward."""

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        shown, _, over, cut, facts = super().step(action)
        return shown, float(len(self.actions)), over, cut, facts


class Watched(Learner):
    """The NumPy learner; keeps what it was asked, from the end of its warming up."""

    def __init__(self, made: Algorithm, weights: dict[str, Weights]) -> None:
        super().__init__(made, specification, weights)
        self.rates: list[float] = []
        self.batches: list[Batch] = []
        self.syncs = self.acts = self.waits = 0

    def load_state(self, state: Weights) -> None:
        super().load_state(state)
        self.rates, self.batches, self.syncs, self.acts = [], [], 0, 0

    def update(self, step: str, batch: Arrays, learning_rate: float) -> Arrays:
        self.rates.append(learning_rate)
        self.batches.append(Batch(*batch))
        return super().update(step, batch, learning_rate)

    def sync(self, target: str, share: float = 1.0) -> None:
        super().sync(target, share)
        self.syncs += 1

    def synchronize(self) -> None:
        self.waits += 1

    def act(self, observations: Observation) -> NDArray[np.int64]:
        self.acts += 1
        return super().act(observations)


class Bursting(Watched):
    """Takes all updates of an interval in one call, as compiled learners do."""

    def burst(self, step: str, batches: Arrays, learning_rate: float) -> Arrays:
        for number in range(len(batches[0])):
            aux = self.update(step, tuple(array[number] for array in batches), learning_rate)
        return aux


SMALL = Settings(
    total_steps=400,
    hidden=(16,),
    learning_rate=1e-2,
    batch_size=32,
    learning_starts=100,
    train_interval=10,
    updates=5,
    gamma=0.5,
    evaluation_interval=100,
    evaluation_episodes=3,
)


class Run:
    """One training: its result, its learner, and all environments that it made, the first of which it trains in."""

    def __init__(
        self,
        config: Settings = SMALL,
        environment: Any = Counter,
        seed: int = 1,
        collective: Rank | None = None,
        precise_phases: bool = False,
        watched: type[Watched] = Watched,
        prune: Callable[[int, float], bool] = lambda step, mean: False,
        **extra: Any,
    ) -> None:
        self.environments: list[Any] = [environment() for _ in range(config.evaluation_episodes + 1)]
        self.reports, self.clock = Reports(), PhaseClock()
        made = algorithm(Space(1, 2), config)
        weights = initial_weights(made, np.random.default_rng([seed, 0]))
        self.first, self.learner = weights["online"], watched(made, weights)
        own, *others = self.environments
        run = RunOfTraining(seed, self.reports, self.clock, collective, precise_phases, prune=prune)
        training = assemble(made, self.learner, lambda: own, others, run, "hpcrl.rl.loops.off_policy")
        self.loop: Any = training.loop
        self.result: Result = train(training, **extra)

    @property
    def actions(self) -> list[int]:
        return list(self.environments[0].actions)


def same(first: Weights, second: Weights) -> bool:
    return all(each.tobytes() == second[name].tobytes() for name, each in first.items())


def test_an_episode_that_is_cut_off_is_not_one_that_ended() -> None:
    """A reward of 1 for ever is worth 1 / (1 - 0.5) = 2; with truncation taken for an end it would be worth 1.7."""
    config = replace(SMALL, total_steps=800, final_learning_rate=1e-4, updates=10)
    endless = Run(config, lambda: Blind(5, cut=True))
    q = endless.learner.weights("online")
    value = np.maximum(q["layers.0.bias"], 0) @ q["layers.1.weight"].T + q["layers.1.bias"]
    np.testing.assert_allclose(value, 2.0, atol=0.05)
    assert not any(batch.terminated.any() for batch in endless.learner.batches)
    assert endless.reports.episodes == [(step, 5.0, 5) for step in range(5, 801, 5)]
    ended = Run(config, lambda: Blind(5))
    assert np.mean([batch.terminated.mean() for batch in ended.learner.batches]) == pytest.approx(1 / 5, abs=0.03)


def test_transitions_are_those_of_one_episode() -> None:
    """What follows the last step is what that step showed, and not the next episode's start."""
    for batch in Run().learner.batches:
        np.testing.assert_array_equal(batch.next_observations, batch.observations + 1)
        np.testing.assert_array_equal(batch.terminated, batch.next_observations[:, 0] == 4)
        assert (batch.rewards == 1).all()


def test_every_transition_is_drawn_as_often_as_any_other() -> None:
    config = replace(SMALL, total_steps=600, learning_starts=600, updates=500)
    run = Run(config, Numbered)
    drawn = np.concatenate([batch.rewards for batch in run.learner.batches])
    assert set(drawn) == set(range(1, 601))
    assert drawn.mean() == pytest.approx(300.5, abs=8)
    assert len({batch.rewards.tobytes() for batch in run.learner.batches}) == 500


def test_updates_begin_when_they_should_and_come_as_often_as_they_should() -> None:
    run = Run()
    assert len(run.learner.rates) == 31 * 5  # at steps 100, 110 ... 400
    assert run.learner.syncs == 40
    assert Run(replace(SMALL, target_interval=20)).learner.syncs == 20
    assert {len(batch.actions) for batch in run.learner.batches} == {32}
    late = Run(replace(SMALL, learning_starts=401))
    assert late.learner.rates == []


def test_the_learning_rate_falls_to_its_last_value() -> None:
    rates = Run(replace(SMALL, final_learning_rate=1e-3)).learner.rates
    wanted = [1e-2 + (1e-3 - 1e-2) * step / 400 for step in range(100, 401, 10) for _ in range(5)]
    np.testing.assert_allclose(rates, wanted)


def test_warming_up_leaves_no_trace() -> None:
    """Without an update of the training the last weights are the first ones, bit by bit, and so is the optimiser."""
    config = replace(SMALL, learning_starts=401, target_interval=1_000)
    run = Run(config)
    assert same(run.learner.weights("online"), run.first)
    state = run.learner.state()
    assert not any(each.any() for name, each in state.items() if name.startswith("optimizer/"))
    assert all(state[f"target/{name}"].tobytes() == each.tobytes() for name, each in run.first.items())


def test_exploring_falls_from_always_to_seldom() -> None:
    config = replace(SMALL, total_steps=2_000, learning_starts=2_001, evaluation_interval=2_000, final_epsilon=0.1)
    run = Run(replace(config, exploration_fraction=0.5))
    greedy = run.learner.acts - sum(environment.actions != [] for environment in run.environments[1:2]) * 4
    # Of the first half of the steps 55 % are random on average, of the second 10 %.
    assert greedy == pytest.approx(1_000 * 0.45 + 1_000 * 0.9, abs=60)
    always = Run(replace(config, initial_epsilon=1.0, final_epsilon=1.0))
    assert np.mean(always.actions) == pytest.approx(0.5, abs=0.05)
    never = Run(replace(config, initial_epsilon=0.0, final_epsilon=0.0))
    assert never.learner.acts == 2_000 + 4


def test_one_seed_is_one_run_and_another_is_another() -> None:
    random = replace(SMALL, initial_epsilon=1.0, final_epsilon=1.0)
    first, again, other = (Run(random, seed=seed) for seed in (1, 1, 2))
    assert same(first.learner.weights("online"), again.learner.weights("online"))
    assert first.actions == again.actions
    assert first.actions != other.actions
    assert not same(first.first, other.first)
    assert first.environments[0].seeds[0] != other.environments[0].seeds[0]
    drawn = [[batch.observations.tobytes() for batch in run.learner.batches] for run in (first, other)]
    assert drawn[0] != drawn[1]
    assert first.environments[1].seeds[0] != other.environments[1].seeds[0]


def test_an_environment_is_seeded_once() -> None:
    seeds = Run().environments[0].seeds
    assert seeds[0] is not None
    assert seeds[1:] == [None] * 100


def test_evaluations_see_the_same_starts_which_are_not_those_of_the_training() -> None:
    run = Run()
    own = [environment.seeds for environment in run.environments[1:]]
    assert [len(set(seeds)) for seeds in own] == [1, 1, 1]
    assert len({seeds[0] for seeds in own} | {run.environments[0].seeds[0]}) == 4
    assert all(len(seeds) == 4 for seeds in own)  # steps 100, 200, 300, 400


def test_a_score_is_the_mean_of_its_episodes() -> None:
    """Probe 2 pays what it shows, whatever is done: the mean is known, and is neither the best nor the last."""
    environments = [Probe(2) for _ in range(9)]
    shown = [Probe(2).reset(seed=40 + index)[0][0] for index in range(9)]
    assert evaluate(lambda seen: np.zeros(len(seen), np.int64), environments, range(40, 49)).tolist() == shown
    config = replace(SMALL, evaluation_episodes=9)
    run = Run(config, lambda: Probe(2), seed=3)
    mean = run.result.final_score
    assert mean is not None and abs(mean) < 1
    assert [value for _, value in run.reports.evaluations] == [mean] * 4


def test_an_evaluation_plays_whole_episodes_greedily() -> None:
    class Long(Counter):
        def step(self, action: int) -> Any:
            shown, reward, over, cut, facts = super().step(action)
            return shown, reward * (1 + action), over, cut, facts

    def act(seen: Observation) -> NDArray[np.int64]:
        return (seen[:, 0] >= 2).astype(np.int64)

    assert evaluate(act, [Long(3), Long(5), Long(4, cut=True)], range(3)).tolist() == [1 + 1 + 2, 1 + 1 + 6, 1 + 1 + 4]


class Falling(Counter):
    """Evaluations that score 3, 5, 2 and 4 in turn: each plays as many steps; other starts score what the last one did."""

    LENGTHS = (3, 5, 2, 4)

    def reset(self, seed: int | None = None) -> tuple[Observation, dict[str, Any]]:
        shown = super().reset(seed)
        self._most = self.LENGTHS[(self.seeds.count(self.seeds[0]) - 1) % 4]
        return shown


def test_goal_best_and_last_score_are_told_apart() -> None:
    run = Run(environment=Falling, goal=3.0)
    assert run.reports.evaluations == [(100, 3.0), (200, 5.0), (300, 2.0), (400, 4.0)]
    assert (run.result.goal_step, run.result.best_score, run.result.final_score) == (100, 5.0, 4.0)
    assert Run(environment=Falling, goal=4.5).result.goal_step == 200
    assert Run(environment=Falling, goal=5.5).result.goal_step is None


def test_episodes_are_reported_with_their_ends_returns_and_lengths() -> None:
    run = Run(environment=lambda: Counter(7))
    assert run.reports.episodes == [(7 * number, 7.0, 7) for number in range(1, 58)]
    assert run.result.episodes == 57


def test_acting_in_numpy_is_acting_by_the_learner() -> None:
    """NumPy is the learner's framework here, so that both runs must be the same to the last bit."""
    by_learner, by_numpy = (Run(replace(SMALL, acting=acting), lambda: Probe(5)) for acting in ("framework", "numpy"))
    assert by_learner.reports.episodes == by_numpy.reports.episodes
    assert same(by_learner.learner.weights("online"), by_numpy.learner.weights("online"))
    assert by_numpy.result.final_score == by_learner.result.final_score == 1.0
    assert (by_numpy.learner.acts, by_learner.learner.acts > 300) == (0, True)


@pytest.mark.parametrize("acting", ["framework", "numpy"])
@pytest.mark.parametrize("stop", [57, 213])
def test_a_resumed_run_is_the_run_that_was_not_stopped(tmp_path: Path, stop: int, acting: str) -> None:
    """To the last bit, where an episode is one step long: an environment's own state is not in a checkpoint."""
    config = replace(SMALL, acting=acting, buffer_size=90, final_epsilon=0.5)

    def environment() -> Probe:
        return Probe(4)

    whole = Run(config, environment, goal=1.0)
    asked = iter(range(10**6))
    file = tmp_path / "c.npz"
    first = Run(config, environment, goal=1.0, stop=lambda: next(asked) == stop, checkpoint_file=file)
    assert (first.result.outcome, first.result.steps) == ("preempted", stop)
    second = Run(config, environment, goal=1.0, checkpoint_file=file)
    assert same(second.learner.weights("online"), whole.learner.weights("online"))
    wanted, found = whole.learner.state(), second.learner.state()
    assert all(found[name].tobytes() == each.tobytes() for name, each in wanted.items())
    assert first.reports.episodes + second.reports.episodes == whole.reports.episodes
    assert first.reports.evaluations + second.reports.evaluations == whole.reports.evaluations
    assert second.result == whole.result
    assert second.loop.updates == whole.loop.updates == 155


def test_a_resumed_run_keeps_its_best_score_and_its_goal(tmp_path: Path) -> None:
    asked = iter(range(10**6))
    file = tmp_path / "c.npz"
    first = Run(environment=Falling, goal=4.5, stop=lambda: next(asked) == 250, checkpoint_file=file)
    rest = Run(environment=lambda: Counter(1), goal=0.5, checkpoint_file=file)
    assert (rest.result.best_score, rest.result.goal_step, rest.result.steps) == (5.0, 200, 400)
    step, spent = rest.reports.took_up
    assert (step, spent) == (250, {"training_time": float(len(first.reports.episodes))})


def test_the_starts_of_a_resumed_run_are_new_ones(tmp_path: Path) -> None:
    asked = iter(range(10**6))
    file = tmp_path / "c.npz"
    first = Run(stop=lambda: next(asked) == 50, checkpoint_file=file)
    assert first.environments[0].seeds[0] != Run(checkpoint_file=file).environments[0].seeds[0]


def test_time_is_counted_where_it_is_spent() -> None:
    run = Run(environment=lambda: Counter(4))
    counts = run.clock.counts
    assert counts["env_step"] == 400 + 100
    assert counts["act"] == run.learner.acts - 4 * 4
    assert counts["update"] == counts["transfer"] == 155
    assert counts["replay"] == 400 + 155 // 5  # the batches of an interval are drawn together
    assert counts["evaluate"] == 4
    assert counts["compile"] == 1


def test_what_a_search_takes_for_an_evaluation_is_a_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    at: list[float] = []
    monkeypatch.setattr("hpcrl.telemetry.phases.perf_counter", lambda: float(len(at)))

    def prune(step: int, mean: float) -> bool:
        at.append(mean)  # a second passes
        return len(at) == 2

    run = Run(prune=prune)
    assert (run.result.outcome, run.result.steps) == ("pruned", 200)
    assert run.clock.seconds["evaluate"] == 2 == run.clock.total()


def test_updates_in_one_call_are_the_same_updates_and_one_entry_of_their_phase() -> None:
    one, together = Run(), Run(watched=Bursting)
    assert together.learner.rates == one.learner.rates
    assert same(together.learner.weights("online"), one.learner.weights("online"))
    assert together.clock.counts["update"] == together.clock.counts["transfer"] == 31
    assert one.loop.updates == together.loop.updates == 155


def test_precise_phases_wait_after_every_update() -> None:
    plain, precise = (Run(precise_phases=wait).learner.waits for wait in (False, True))
    assert precise - plain == 155


def test_two_ranks_share_a_run_and_nothing_else() -> None:
    random = replace(SMALL, initial_epsilon=1.0, final_epsilon=1.0)
    first, second = (Run(random, collective=Rank(rank)) for rank in (0, 1))
    assert same(first.first, second.first)
    assert first.actions != second.actions
    assert first.environments[0].seeds[0] != second.environments[0].seeds[0]
    drawn = [[batch.observations.tobytes() for batch in run.learner.batches] for run in (first, second)]
    assert drawn[0] != drawn[1]
    assert (first.result.steps, len(first.actions), len(second.actions)) == (400, 200, 200)
    assert {len(batch.actions) for batch in first.learner.batches} == {16}
    assert len(first.learner.rates) == len(Run(random).learner.rates)
    assert len(first.reports.evaluations) == 4
    assert second.reports.evaluations == []  # rank 0 evaluates


def test_a_full_replay_of_two_ranks_holds_half_each() -> None:
    config = replace(SMALL, buffer_size=40, learning_starts=400, updates=50)
    alone, shared = (Run(config, Numbered, collective=each).learner.batches for each in (None, Rank(0)))
    for batches, held in ((alone, 40), (shared, 20)):
        drawn = {reward for batch in batches for reward in batch.rewards}
        assert len(drawn) == held
        assert max(drawn) - min(drawn) == held - 1


BY_EPISODES = replace(
    SMALL, train_unit="episodes", train_interval=5, total_episodes=37, learning_starts=1, final_epsilon=0.1
)


def test_intervals_of_episodes() -> None:
    """Episodes of four steps: seven intervals of five are learned from, and two episodes more are played."""
    run = Run(BY_EPISODES)
    assert (run.result.steps, run.result.episodes) == (37 * 4, 37)
    assert len(run.learner.rates) == 7 * 5
    assert run.reports.evaluations[-1][0] == 37 * 4
    unbounded = Run(replace(BY_EPISODES, total_episodes=0))
    assert (unbounded.result.steps, len(unbounded.learner.rates)) == (400, 100 // 5 * 5)


def test_epsilon_falls_with_each_episode_of_its_explorer() -> None:
    run = Run(replace(BY_EPISODES, epsilon_decay=0.8, train_interval=50, total_episodes=400, total_steps=10**6))
    assert not run.learner.rates[400:]  # eight intervals of five updates
    # 1, 0.8, 0.64 ... until 0.1: of the first 11 episodes 1 / (1 - 0.8) - 0.1 / 0.2 = 4.5 are random, then a tenth.
    wanted = 4 * sum(max(0.1, 0.8**episode) for episode in range(400))
    evaluated = 3 * 4 * len(run.reports.evaluations)
    assert run.learner.acts - evaluated // 3 == pytest.approx(1600 - wanted, abs=4 * np.sqrt(wanted))


def test_a_training_by_episodes_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.npz"
    config = replace(BY_EPISODES, epsilon_decay=0.9)
    asked = iter(range(1000))
    first = Run(config, stop=lambda: next(asked) == 80, checkpoint_file=file)
    assert first.result.outcome == "preempted"
    rest = Run(config, checkpoint_file=file)
    assert (rest.result.outcome, rest.result.episodes) == ("completed", 37)
    assert len(first.learner.rates) + len(rest.learner.rates) == 35


def test_each_batch_has_its_epochs_and_the_target_follows_updates() -> None:
    config = replace(SMALL, epochs=3, target_unit="updates", target_interval=1, target_share=0.25, total_steps=110)
    run = Run(config)
    assert len(run.learner.rates) == 2 * 5 * 3 and run.learner.syncs == 2 * 5
    batches = run.learner.batches
    assert all(batches[number].observations is batches[number - number % 3].observations for number in range(30))
    # With the whole way after every update, all epochs of a batch learn towards the weights that the batch began with.
    whole = Run(replace(config, target_share=1.0))
    state = whole.learner.state()
    assert same(checkpoint.part("online", state), checkpoint.part("target", state))
    state = run.learner.state()
    assert not same(checkpoint.part("online", state), checkpoint.part("target", state))


def test_the_target_moves_by_its_share() -> None:
    """One update and one step towards it: target = (1 - share) first + share online."""
    config = replace(SMALL, updates=1, learning_starts=100, total_steps=100, target_unit="updates", target_interval=1)
    run = Run(replace(config, target_share=0.1, final_learning_rate=1e-2))
    state = run.learner.state()
    for name, first in run.first.items():
        online, target = state[f"online/{name}"], state[f"target/{name}"]
        assert np.allclose(target, 0.9 * first + 0.1 * online, rtol=0, atol=1e-7)
        assert not np.array_equal(first, online)
