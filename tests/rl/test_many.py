"""DQN in several environments that step together, seen from outside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hpcrl.catalogue.algorithms import rainbow
from hpcrl.catalogue.algorithms.dqn import Settings, fault
from hpcrl.rl.algorithms import rainbow as rainbow_page
from hpcrl.rl.algorithms.dqn import many_chooser
from hpcrl.rl.envs.doors import AGENT, GOAL, field
from hpcrl.rl.envs.make import gymnasium_environment
from hpcrl.rl.frameworks.numpy.core import Learner
from hpcrl.rl.interfaces import Space
from hpcrl.rl.loops.off_policy import OffPolicyLoop
from hpcrl.rl.make import Training, assemble, make_training
from hpcrl.rl.replay.uniform import Replay
from hpcrl.rl.runs import Run
from hpcrl.rl.train import train
from hpcrl.rl.weights import initial_weights
from hpcrl.telemetry.phases import PhaseClock
from tests.rl.builders import Brighter, Counter, Rank, Reports, dqn, made_of
from tests.rl.test_loop import Watched

SMALL = Settings(
    total_steps=960, hidden=(16,), learning_rate=1e-2, batch_size=16, learning_starts=96, train_interval=24, updates=3,
    target_interval=50, exploration_fraction=0.5, evaluation_interval=240, evaluation_episodes=3,
)  # fmt: skip
RAINBOW = rainbow.Settings(
    total_steps=960, hidden=(16,), learning_rate=1e-2, batch_size=16, learning_starts=96, train_interval=24, updates=3,
    target_interval=50, n_step=3, atoms=11, value_minimum=-5.0, value_maximum=5.0, evaluation_interval=240, evaluation_episodes=3,
)  # fmt: skip
# The parts of Rainbow that change how it explores and what it stores: all of them, and none.
RAINBOWS = [RAINBOW, replace(RAINBOW, noisy=False, prioritized=False, n_step=1)]
make_doors = partial(gymnasium_environment, "Doors-v0", 30, {"size": 5})


def trained(
    settings: Any, make: Callable[[], Any] = make_doors, clock: PhaseClock | None = None, **extra: Any
) -> tuple[Training, Reports]:
    reports, name = Reports(), "rainbow" if isinstance(settings, rainbow.Settings) else "dqn"
    training = make_training(name, settings, "numpy", "eager", make, Run(1, reports, clock or PhaseClock()))
    train(training, **extra)
    return training, reports


def assert_same(first: tuple[Training, Reports], second: tuple[Training, Reports]) -> None:
    weights, others = first[0].learner.state(), second[0].learner.state()
    assert all(array.tobytes() == others[name].tobytes() for name, array in weights.items())
    assert first[1].episodes == second[1].episodes and first[1].evaluations == second[1].evaluations
    assert len(first[1].episodes) > 20


@pytest.mark.parametrize("settings", [SMALL, *RAINBOWS])
def test_one_environment_is_explored_as_by_the_loop_of_a_single_one(settings: Any) -> None:
    single = trained(settings)
    assert_same(single, trained(replace(settings, stepping="arrays")))
    if settings is SMALL:
        assert_same(single, trained(replace(settings, stepping="arrays", shared_coin=True)))


@pytest.mark.parametrize("settings", [SMALL, *RAINBOWS])
def test_all_ways_of_stepping_are_the_same_training(settings: Any) -> None:
    sync, *others = (
        trained(replace(settings, environments=8, stepping=stepping)) for stepping in ("sync", "processes", "arrays")
    )
    for other in others:
        assert_same(sync, other)


def test_images_are_stepped_together_too() -> None:
    settings = replace(SMALL, environments=4, filters=(2,), total_steps=240, train_interval=48, updates=1, batch_size=4)
    sync, processes = (trained(replace(settings, stepping=stepping), Brighter) for stepping in ("sync", "processes"))
    assert_same(sync, processes)
    assert isinstance(sync[0].loop, OffPolicyLoop)
    stored = sync[0].loop._updates.memory.state()["observations"]
    assert stored.dtype == np.uint8 and stored.shape == (240, 36 * 36) and stored.max() > 150


def test_transitions_are_those_of_their_own_environment() -> None:
    training, reports = trained(replace(SMALL, environments=8, stepping="arrays", total_steps=4800))
    assert isinstance(training.loop, OffPolicyLoop)
    stored, made = training.loop._updates.memory.state(), field(5, 3)
    before, after = stored["observations"], stored["next_observations"]
    places, goals = (before == AGENT).argmax(axis=1), (before == GOAL).argmax(axis=1)
    wanted = made.after[places, stored["actions"]]
    assert len(before) == 4800
    assert ((after == AGENT).argmax(axis=1) == wanted).all()
    assert ((after == GOAL).any(axis=1) == (wanted != goals)).all()
    assert (stored["rewards"] == made.distances[places, goals] - made.distances[wanted, goals]).all()
    assert (stored["terminated"] == (wanted == goals)).all()
    ends = [length for _, _, length in reports.episodes]
    assert 0 < stored["terminated"].sum() < len(ends) and max(ends) == 30  # some were cut off


class Together:
    """One training in several Counters: its learner is watched."""

    def __init__(self, settings: Settings, collective: Rank | None = None, most: int = 4, **extra: Any) -> None:
        self.environments: list[Counter] = []
        self.reports = Reports()
        made = dqn(settings, Space(1, 2))
        self.learner = Watched(made, initial_weights(made, np.random.default_rng(0)))

        def make_environment() -> Any:
            self.environments.append(Counter(most))
            return self.environments[-1]

        others = [Counter(most) for _ in range(settings.evaluation_episodes)]
        run = Run(1, self.reports, PhaseClock(), collective)
        training = assemble(made, self.learner, make_environment, others, run, "hpcrl.rl.loops.off_policy")
        self.result = train(training, **extra)


@pytest.mark.parametrize("environments", [1, 2, 8, 24])
def test_updates_come_as_often_whatever_the_number_of_environments(environments: int) -> None:
    run = Together(replace(SMALL, environments=environments))
    assert run.result.steps == 960
    # Intervals end at 96, 120, ..., 960.
    assert len(run.learner.batches) == 3 * 37
    assert run.learner.rates[0] == pytest.approx(1e-2 * (1 - 96 / 960))
    # A step of many environments may pass several multiples: the copy moves once.
    assert run.learner.syncs == 960 // 50
    assert run.result.episodes == 960 // 4 and {length for _, _, length in run.reports.episodes} == {4}
    assert [len(each.actions) for each in run.environments] == [960 // environments] * environments


def test_ranks_share_the_environments_and_explore_differently() -> None:
    runs = [Together(replace(SMALL, environments=4), Rank(rank)) for rank in (0, 1)]
    seeds = [each.seeds[0] for run in runs for each in run.environments]
    assert len(set(seeds)) == 4 and [len(run.environments) for run in runs] == [2, 2]
    assert runs[0].environments[0].actions != runs[1].environments[0].actions
    assert [run.result.steps for run in runs] == [960, 960]
    assert [len(run.environments[0].actions) for run in runs] == [240, 240]


@pytest.mark.parametrize("environments", [1, 2])
def test_a_resumed_run_is_the_run_that_was_not_stopped(tmp_path: Path, environments: int) -> None:
    settings = replace(SMALL, environments=environments)
    whole = Together(settings)
    asked = iter(range(10**6))
    file = tmp_path / "c.npz"
    # Between two episodes, since an episode is not continued.
    stopped = Together(settings, stop=lambda: next(asked) == 480 // environments, checkpoint_file=file)
    assert (stopped.result.outcome, stopped.result.steps) == ("preempted", 480)
    resumed = Together(settings, checkpoint_file=file)
    first, second = whole.learner.state(), resumed.learner.state()
    assert all(array.tobytes() == second[name].tobytes() for name, array in first.items())
    assert [*stopped.reports.episodes, *resumed.reports.episodes] == whole.reports.episodes
    before, after = ({each.seeds[0] for each in run.environments} for run in (stopped, resumed))
    assert not before & after


def test_a_resumed_rainbow_is_the_run_that_was_not_stopped(tmp_path: Path) -> None:
    settings, make, file = replace(RAINBOW, environments=2), Counter, tmp_path / "c.npz"
    whole = trained(settings, make)
    asked = iter(range(10**6))
    # Between two episodes, since an episode is not continued.
    stopped = trained(settings, make, stop=lambda: next(asked) == 240, checkpoint_file=file)
    resumed = trained(settings, make, checkpoint_file=file)
    assert stopped[0].loop.step == 480
    stopped[1].episodes += resumed[1].episodes
    stopped[1].evaluations += resumed[1].evaluations
    assert_same(whole, (resumed[0], stopped[1]))


@pytest.mark.parametrize("settings", [SMALL, *RAINBOWS])
@pytest.mark.parametrize("environments", [1, 8])
def test_shapes_of_acting_are_compiled_before_the_training(
    monkeypatch: pytest.MonkeyPatch, settings: Any, environments: int
) -> None:
    clock, seen = PhaseClock(), {"act": set[tuple[str, int]](), "compile": set[tuple[str, int]]()}

    def watch(name: str) -> None:
        original = getattr(Learner, name)

        def watched(self: Learner, observations: NDArray[Any], *noise: Any) -> Any:
            if clock.phase in seen:
                seen[clock.phase].add((name, len(observations)))
            return original(self, observations, *noise)

        monkeypatch.setattr(Learner, name, watched)

    watch("act")
    watch("sample")
    trained(replace(settings, environments=environments), clock=clock)
    assert seen["act"] == {("sample" if isinstance(settings, rainbow.Settings) else "act", environments)}
    assert seen["act"] < seen["compile"]
    # Compiling takes seconds: only what is called. Evaluations act in three environments, an agent in one.
    assert seen["compile"] == seen["act"] | {("act", 1), ("act", 3)}


class Zero:
    """Acts with 0, and keeps how many observations it saw at a time."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def act(self, observations: NDArray[np.float32]) -> NDArray[np.int64]:
        self.counts.append(len(observations))
        return np.zeros(len(observations), np.int64)


@pytest.mark.parametrize("shared", [False, True])
def test_coins(shared: bool) -> None:
    settings = replace(SMALL, initial_epsilon=0.5, final_epsilon=0.5, shared_coin=shared)
    actor, phases = Zero(), []
    choose = many_chooser(dqn(settings, Space(1, 1000)), actor, np.random.default_rng(0), phases.append)  # type: ignore[arg-type]
    explored = np.array([(choose(np.zeros((50, 1), np.float32), 0) > 0).mean() for _ in range(400)])
    assert explored.mean() == pytest.approx(0.5, abs=0.08)
    assert (((explored < 0.05) | (explored > 0.95)).mean() == 1) == shared
    assert set(actor.counts) == {50} and len(phases) == len(actor.counts)
    assert (len(actor.counts) < 250) == shared


class Noted:
    """Acts with 0, and keeps the noise and how many observations it saw at a time."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, bytes]] = []

    def sample(self, observations: NDArray[np.float32], noise: NDArray[np.float32]) -> tuple[NDArray[np.int64]]:
        self.seen.append((len(observations), noise.tobytes()))
        return (np.zeros(len(observations), np.int64),)


@pytest.mark.parametrize("settings", RAINBOWS)
def test_environments_of_rainbow_share_the_noise_of_a_step(settings: Any) -> None:
    actor, phases = Noted(), []
    made = made_of("rainbow", replace(settings, final_epsilon=0.5), Space(1, 1000))
    choose = rainbow_page.many_chooser(made, actor, np.random.default_rng(0), phases.append)  # type: ignore[arg-type]
    explored = np.array([(choose(np.zeros((50, 1), np.float32), 960) > 0).mean() for _ in range(100)])
    # Each environment has its own coin; noisy layers explore by themselves.
    assert explored.mean() == pytest.approx(0.0 if settings.noisy else 0.5, abs=0.05) and explored.max() < 0.8
    assert {count for count, _ in actor.seen} == {50} and phases == ["act"] * 100
    assert len({noise for _, noise in actor.seen}) == (100 if settings.noisy else 1)


@pytest.mark.parametrize("counts", [[3, 4, 2, 5, 7], [12, 1, 30]])
def test_storing_many_is_storing_each(counts: list[int]) -> None:
    one, many, blocks = Replay(7, 2), Replay(7, 2), Replay(7, 2)
    draw = np.random.default_rng(0)
    for count in counts:
        parts = (
            draw.normal(size=(count, 2)).astype(np.float32), draw.integers(0, 9, count),
            draw.normal(size=count).astype(np.float32), draw.normal(size=(count, 2)).astype(np.float32),
            draw.random(count) < 0.5,
        )  # fmt: skip
        many.add_many(*parts)
        blocks.add_block(parts[0], parts[1], parts[2].astype(np.float64), *parts[3:], parts[4], 3)
        for row in zip(*parts, strict=True):
            one.add(*row)
        for name, array in one.state().items():
            np.testing.assert_array_equal(array, many.state()[name])
            np.testing.assert_array_equal(array, blocks.state()[name])


@pytest.mark.parametrize(
    ("changes", "ranks", "expected"),
    [
        ({"environments": 5}, 1, ("train_interval", "24: expected a multiple of environments, which is 5")),
        ({"environments": 6}, 4, ("environments", "4 ranks cannot share 6: expected a multiple of 4")),
        ({"environments": 4, "train_unit": "episodes"}, 1, ("train_unit", "episodes: does not apply to environments that step together (environments: 4, stepping: sync)")),
        ({"stepping": "arrays", "epsilon_decay": 0.9}, 1, ("epsilon_decay", "0.9: does not apply to environments that step together (environments: 1, stepping: arrays)")),
        ({"environments": 4, "topology": "pairwise"}, 1, ("topology", "pairwise: does not apply to environments that step together (environments: 4, stepping: sync)")),
        ({"stepping": "arrays", "step_latency": 0.1}, 1, ("step_latency", "0.1: needs stepping sync, processes or pipes, got arrays")),
        ({"environments": 4, "step_latency": 0.1}, 1, None),
        ({"environments": 8, "stepping": "compiled"}, 2, None),
    ],
)  # fmt: skip
def test_what_environments_that_step_together_cannot_have(
    changes: dict[str, Any], ranks: int, expected: tuple[str, str] | None
) -> None:
    assert fault(replace(SMALL, **changes), ranks) == expected


@pytest.mark.parametrize(
    ("changes", "ranks", "expected"),
    [
        ({"environments": 5}, 1, ("train_interval", "24: expected a multiple of environments, which is 5")),
        ({"environments": 6}, 4, ("environments", "4 ranks cannot share 6: expected a multiple of 4")),
        ({"environments": 4, "topology": "collective"}, 1, ("topology", "collective: does not apply to environments that step together (environments: 4, stepping: sync)")),
        # A window of three steps in each environment must be complete at the first update, which is at a multiple of 24.
        ({"environments": 24, "learning_starts": 48}, 1, ("learning_starts", "48: expected at least 72, the steps of the first whole window (n_step 3 of each of 24 explorers): before them the replay may be empty")),
        ({"environments": 24, "learning_starts": 49}, 1, None),
        ({"environments": 24, "learning_starts": 24, "n_step": 1}, 1, None),
        ({"train_interval": 2, "learning_starts": 1}, 1, ("learning_starts", "1: expected at least 3, the steps of the first whole window (n_step 3): before them the replay may be empty")),
        ({"train_interval": 2, "learning_starts": 1, "train_unit": "episodes"}, 1, None),
        ({"train_interval": 4, "learning_starts": 4}, 2, ("learning_starts", "4: expected at least 6, the steps of the first whole window (n_step 3 of each of 2 explorers): before them the replay may be empty")),
        ({"environments": 8, "stepping": "compiled"}, 2, None),
    ],
)  # fmt: skip
def test_what_rainbow_cannot_have(changes: dict[str, Any], ranks: int, expected: tuple[str, str] | None) -> None:
    assert rainbow.fault(replace(RAINBOW, **changes), ranks) == expected


def test_the_first_update_has_a_window_to_learn_from() -> None:
    """At the least `learning_starts` that is not refused, in episodes that are longer."""
    settings = replace(RAINBOW, environments=4, train_interval=4, learning_starts=12, total_steps=40)
    training, _ = trained(settings, lambda: Counter(100))
    assert all(np.isfinite(array).all() for array in training.learner.state().values())


@pytest.mark.parametrize("prioritized", [True, False])
def test_a_resumed_rainbow_learns_when_a_window_is_complete_again(tmp_path: Path, prioritized: bool) -> None:
    """A checkpoint has no windows that are not complete: the first update is then due before there is one."""
    file, asked = tmp_path / "c.npz", iter(range(10**6))
    settings = replace(RAINBOW, environments=4, train_interval=4, learning_starts=12, total_steps=40)
    settings = replace(settings, prioritized=prioritized)
    stopped, _ = trained(settings, lambda: Counter(100), stop=lambda: next(asked) == 2, checkpoint_file=file)
    assert stopped.loop.step == 8
    resumed, _ = trained(settings, lambda: Counter(100), checkpoint_file=file)
    assert all(np.isfinite(array).all() for array in resumed.learner.state().values())
    assert isinstance(resumed.loop, OffPolicyLoop) and resumed.loop.updates == 3 * 6  # at 20, 24, ..., 40
