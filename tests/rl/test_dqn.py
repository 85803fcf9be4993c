from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hpcrl import rl
from hpcrl.catalogue.algorithms.dqn import Settings
from hpcrl.catalogue.registry import algorithms, frameworks
from hpcrl.errors import HpcrlError, UsageError
from hpcrl.rl.distributed.agreement import check_same_start
from hpcrl.rl.envs.probes import Probe
from hpcrl.rl.evaluation import evaluate, start_seeds
from hpcrl.rl.frameworks.numpy.core import Learner
from hpcrl.rl.interfaces import Arrays, Space, Weights
from hpcrl.rl.make import make_training
from hpcrl.rl.replay.uniform import Replay
from hpcrl.rl.runs import Result, Run
from hpcrl.rl.schedules import linear
from hpcrl.rl.smoke import learn
from hpcrl.rl.specification import dqn as specification
from hpcrl.rl.specification.dqn import loss_and_gradient, targets
from hpcrl.rl.specification.networks import duel, forward
from hpcrl.rl.specification.optimizers import RmsProp, clip
from hpcrl.rl.specification.optimizers import make as make_optimizer
from hpcrl.rl.train import train
from hpcrl.telemetry.phases import PhaseClock
from tests.rl.builders import Batch, Rank, Reports, dqn, exact, first_weights, learner_of
from tests.rl.builders import batch as drawn_batch

SPACE = Space(3, 2)
PLAIN = Settings(hidden=(5, 4))


def weights64(seed: int = 0, settings: Settings = PLAIN) -> Weights:
    drawn = first_weights(dqn(settings, SPACE), np.random.default_rng(seed))["online"]
    return {name: array.astype(np.float64) for name, array in drawn.items()}


def batch(count: int = 6, seed: int = 1) -> Batch:
    return drawn_batch(np.random.default_rng(seed), count, inputs=3, terminal=0.4)


def test_forward_by_hand() -> None:
    weights = {
        "layers.0.weight": np.array([[1.0, -1.0], [2.0, 0.0]]), "layers.0.bias": np.array([0.0, 1.0]),
        "layers.1.weight": np.array([[1.0, 1.0]]), "layers.1.bias": np.array([0.5]),
    }  # fmt: skip
    # relu([1 - 3, 2 + 1]) = [0, 3]; 0 + 3 + 0.5
    assert forward(weights, np.array([[1.0, 3.0]]))[-1].tolist() == [[3.5]]


@pytest.mark.parametrize("double", [False, True])
def test_targets_by_hand(double: bool) -> None:
    # Linear networks on one input: Q(s) = w s. Online prefers action 0, the target network action 1.
    online = {"layers.0.weight": np.array([[2.0], [1.0]]), "layers.0.bias": np.zeros(2)}
    target = {"layers.0.weight": np.array([[3.0], [5.0]]), "layers.0.bias": np.zeros(2)}
    ones = np.ones((2, 1), np.float32)
    given = Batch(ones, np.array([0, 0]), np.array([1, 1], np.float32), ones, np.array([0, 1], np.float32))
    best = 3.0 if double else 5.0
    settings = Settings(gamma=0.5, double=double)
    np.testing.assert_allclose(targets(online, target, given, settings), [1 + 0.5 * best, 1.0])


def test_losses_by_hand() -> None:
    weights = {"layers.0.weight": np.array([[1.0], [0.0]]), "layers.0.bias": np.zeros(2)}
    observations = np.array([[0.5], [4.0]], np.float32)
    # Terminal, without a reward: the targets are 0, the errors 0.5 and 4.
    given = Batch(observations, np.array([0, 0]), np.zeros(2, np.float32), observations, np.ones(2, np.float32))
    assert loss_and_gradient(weights, given, Settings(loss="huber"), weights)[0] == pytest.approx((0.125 + 3.5) / 2)
    assert loss_and_gradient(weights, given, Settings(loss="mse"), weights)[0] == pytest.approx((0.25 + 16) / 2)


def test_duelling_by_hand() -> None:
    # V = 1, A = (2, 4): Q = 1 + (2, 4) - 3
    assert duel(np.array([[1.0, 2.0, 4.0]])).tolist() == [[0.0, 2.0]]


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("kind", ["huber", "mse"])
def test_gradients_by_finite_differences(kind: str, dueling: bool) -> None:
    settings = replace(PLAIN, loss=kind, dueling=dueling, gamma=0.9)
    weights, target, given = weights64(settings=settings), weights64(5, settings), batch()
    _, gradients, aux = loss_and_gradient(weights, given, settings, target)
    assert aux == ()
    for name, array in weights.items():
        for index in np.ndindex(array.shape):
            values = []
            for sign in (1, -1):
                array[index] += sign * 1e-6
                values.append(loss_and_gradient(weights, given, settings, target)[0])
                array[index] -= sign * 1e-6
            assert gradients[name][index] == pytest.approx((values[0] - values[1]) / 2e-6, abs=1e-7)


def test_clipping_scales_to_the_joint_norm() -> None:
    gradients = {"a": np.array([3.0]), "b": np.array([4.0])}
    clipped = clip(gradients, 1.0)
    assert np.hypot(clipped["a"][0], clipped["b"][0]) == pytest.approx(1.0, rel=1e-5)
    assert clip(gradients, 10.0)["a"][0] == 3.0
    assert clip(gradients, 0)["a"][0] == 3.0


def test_adam_by_hand() -> None:
    # After one step both corrected moments are the gradient and its square: the change is lr * g / (|g| + eps).
    learner = exact(dqn(replace(PLAIN, max_gradient_norm=0), SPACE), {"online": weights64()})
    given = batch()
    before = learner.weights("online")
    _, gradients, _ = loss_and_gradient(before, given, PLAIN, before)
    learner.update("update", learner.transfer(given), 0.01)
    for name, after in learner.weights("online").items():
        expected = before[name] - 0.01 * gradients[name] / (np.abs(gradients[name]) + 1e-8)
        np.testing.assert_allclose(after, expected, atol=1e-12)


def test_rmsprop_by_hand() -> None:
    # v = 0.5 * 0 + 0.5 * 4^2 = 8, then 0.5 * 8 + 0.5 * 2^2 = 6; epsilon stands outside the root.
    weights = {"w": np.array([1.0])}
    optimizer = RmsProp(weights, epsilon=0.1, decay=0.5)
    optimizer.apply(weights, {"w": np.array([4.0])}, 0.5)
    first = 1 - 0.5 * 4 / (np.sqrt(8) + 0.1)
    assert weights["w"][0] == pytest.approx(first)
    optimizer.apply(weights, {"w": np.array([2.0])}, 0.5)
    assert weights["w"][0] == pytest.approx(first - 0.5 * 2 / (np.sqrt(6) + 0.1))


def test_gradient_descent_by_hand() -> None:
    weights = {"w": np.array([1.0, -2.0])}
    optimizer = make_optimizer(weights, Settings(optimizer="sgd"))
    optimizer.apply(weights, {"w": np.array([4.0, 0.5])}, 0.5)
    optimizer.apply(weights, {"w": np.array([2.0, 0.5])}, 0.25)
    assert weights["w"].tolist() == [1 - 0.5 * 4 - 0.25 * 2, -2 - 0.5 * 0.5 - 0.25 * 0.5]
    assert (optimizer.steps, optimizer.slots()) == (2, [])


def test_float32_follows_float64() -> None:
    made = dqn(PLAIN, SPACE)
    double, single = exact(made, {"online": weights64()}), Learner(made, specification, {"online": weights64()})
    for number in range(10):
        for learner in (double, single):
            learner.update("update", learner.transfer(batch(seed=number)), 2.5e-4)
    for name, array in double.weights("online").items():
        np.testing.assert_allclose(single.weights("online")[name], array, atol=1e-6)


def test_initial_weights_are_torch_s() -> None:
    first = first_weights(dqn(Settings(hidden=(10_000,))))["online"]["layers.0.weight"]
    assert first.shape == (10_000, 4)
    assert np.abs(first).max() <= 0.5
    assert first.std() == pytest.approx(0.5 / np.sqrt(3), rel=0.02)


def test_replay_is_a_ring_and_survives_its_state() -> None:
    replay = Replay(4, 1)
    for number in range(6):
        replay.add(
            np.array([number], np.float32), number, float(number), np.array([number + 1], np.float32), number == 5
        )
    assert replay.size == 4
    drawn = Batch(*replay.sample(200, np.random.default_rng(0)))
    assert set(drawn.actions) == {2, 3, 4, 5}
    assert set(drawn.actions[drawn.terminated == 1]) == {5}
    np.testing.assert_array_equal(drawn.next_observations[:, 0], drawn.actions + 1)
    other = Replay(4, 1)
    other.load_state(replay.state())
    again = Batch(*other.sample(200, np.random.default_rng(0)))
    np.testing.assert_array_equal(again.actions, drawn.actions)


def test_batches_drawn_together_are_those_drawn_one_by_one() -> None:
    replay = Replay(1000, 1)
    for number in range(777):
        replay.add(np.array([number], np.float32), number % 2, float(number), np.zeros(1, np.float32), False)
    one, many = np.random.default_rng(3), np.random.default_rng(3)
    together = replay.sample_many(5, 33, many)
    for number in range(5):
        for alone, stacked in zip(replay.sample(33, one), together, strict=True):
            np.testing.assert_array_equal(alone, stacked[number])
    assert one.bit_generator.state == many.bit_generator.state


def test_schedule() -> None:
    assert [linear(1.0, 0.0, 10, step) for step in (0, 5, 10, 20)] == [1.0, 0.5, 0.0, 0.0]


def probe() -> Probe:
    return Probe(5)


def run(
    settings: Settings,
    reporter: Reports,
    environment: Any = probe,
    seed: int = 1,
    collective: Rank | None = None,
    **extra: Any,
) -> Result:
    whole = Run(seed, reporter, PhaseClock(), collective)
    return train(make_training("dqn", settings, "numpy", "eager", environment, whole), **extra)


SMALL = Settings(
    total_steps=600, hidden=(16,), learning_starts=50, train_interval=10, updates=10, evaluation_interval=200
)


@pytest.mark.parametrize("number", range(1, 6))
def test_the_probe_environments_are_solved(number: int) -> None:
    assert learn("numpy", "eager", number) < 0.05


def test_an_evaluation_at_the_goal_is_noted() -> None:
    found = run(SMALL, Reports(), goal=1.0)
    assert found.final_score == 1.0
    assert found.goal_step is not None


def test_one_seed_is_one_run() -> None:
    first, second = Reports(), Reports()
    assert run(SMALL, first) == run(SMALL, second)
    assert first.episodes == second.episodes


def test_the_first_weights_are_the_seed_s() -> None:
    def first(seed: int) -> bytes:
        training = make_training("dqn", SMALL, "numpy", "eager", probe, Run(seed, Reports(), PhaseClock()))
        return b"".join(array.tobytes() for array in training.learner.weights("online").values())

    assert first(1) == first(1) != first(2)


def test_a_resumed_run_takes_up_its_counts(tmp_path: Path) -> None:
    file = tmp_path / "c.npz"
    steps = iter(range(10**6))
    stopped = run(SMALL, Reports(), stop=lambda: next(steps) == 333, checkpoint_file=file)
    assert (stopped.outcome, stopped.steps) == ("preempted", 333)
    reporter = Reports()
    resumed = run(SMALL, reporter, checkpoint_file=file)
    assert (resumed.outcome, resumed.steps, resumed.episodes) == ("completed", 600, 600)
    assert reporter.episodes[0][0] == 334
    file.write_bytes(b"damaged")
    assert run(SMALL, Reports(), checkpoint_file=file).steps == 600


def test_evaluation_plays_each_environment_once() -> None:
    returns = evaluate(
        lambda observations: (observations[:, 0] > 0).astype(np.int64), [probe() for _ in range(5)], range(12)
    )
    assert returns.tolist() == [1.0] * 12


class Lottery(Probe):
    """An episode of one step, whose return is its start's seed if that is one of the lucky ones, and else nothing."""

    def __init__(self, log: list[int], lucky: Callable[[int], bool]) -> None:
        super().__init__(5)
        self._log, self._lucky = log, lucky
        self._value = 0.0

    def reset(self, seed: int | None = None) -> Any:
        if seed is not None:
            self._log.append(seed)
            self._value = float(self._lucky(seed))
        return super().reset(seed)

    def step(self, action: int) -> Any:
        observation, _, terminated, truncated, facts = super().step(action)
        return observation, self._value, terminated, truncated, facts


def lottery(seed: int, lucky: Callable[[int], bool], **changes: Any) -> tuple[Result, Reports, list[int]]:
    starts: list[int] = []
    reporter = Reports()
    config = replace(SMALL, evaluation_interval=100, evaluation_episodes=4, confirmation_episodes=6, **changes)
    result = run(config, reporter, lambda: Lottery(starts, lucky), seed=seed, goal=1.0)
    return result, reporter, starts[1:]  # the first one is the training's


def test_starts_of_evaluations_are_the_seed_s_own_and_always_the_same() -> None:
    _, _, first = lottery(1, lambda seed: False)
    _, _, second = lottery(2, lambda seed: False)
    assert first[:4] == first[4:8] == first[-4:]
    assert len({*first, *second}) == 8


def test_a_goal_counts_when_other_starts_confirm_it() -> None:
    evaluated = set(start_seeds(1, 3, 4))
    result, reporter, starts = lottery(1, lambda seed: seed in evaluated, stop_at_goal=True)
    assert [value for _, value in reporter.evaluations] == [1.0] * 6
    assert reporter.confirmations == [(step, 0.0, False) for step in range(100, 601, 100)]
    assert (result.steps, result.goal_step) == (600, None)
    assert len({*starts} - evaluated) == 6
    for stop, steps in ((True, 100), (False, 600)):
        result, reporter, _ = lottery(1, lambda seed: True, stop_at_goal=stop)
        assert (result.outcome, result.steps, result.goal_step) == ("completed", steps, 100)
        assert result.final_score == 1.0
        assert reporter.confirmations == [(100, 1.0, True)]


def test_stopping_at_a_goal_that_the_study_does_not_have() -> None:
    with pytest.raises(UsageError, match="stop_at_goal: the study has no `goal`"):
        run(replace(SMALL, stop_at_goal=True), Reports())


def test_environments_that_dqn_cannot_take() -> None:
    def continuous() -> Probe:
        environment = probe()
        environment.action_space = SimpleNamespace(shape=(1,))
        return environment

    with pytest.raises(UsageError, match="dqn: expected an environment with discrete actions"):
        run(SMALL, Reports(), continuous)


def test_the_catalogue_names_what_is_implemented() -> None:
    code = Path(rl.__file__).parent / "frameworks"
    assert {path.parent.name for path in code.glob("*/*.py")} == set(frameworks())
    for name, framework in frameworks().items():
        pages = code.parent / "specification" if name == "numpy" else code / name
        learned = {path.stem for path in pages.glob("*.py")} & set(algorithms())
        with_pages = {each: algorithm for each, algorithm in algorithms().items() if algorithm.learns}
        assert learned == {each for each, algorithm in with_pages.items() if name in algorithm.frameworks}
        collectives = code / name / "collectives.py"
        offered = collectives.read_text() if collectives.exists() else ""
        assigned = [
            line.partition(" = ")[0] for line in offered.splitlines() if re.match(r"(horovod|native)\b.* = ", line)
        ]
        assert {each for line in assigned for each in line.split(", ")} == set(framework.parallelism), name


def test_unknown_frameworks_and_modes() -> None:
    made = dqn(PLAIN)
    with pytest.raises(UsageError, match="no framework 'nunpy'; did you mean 'numpy'"):
        learner_of("nunpy", "eager", made, first_weights(made))
    with pytest.raises(UsageError, match="numpy has no execution mode 'lazy'"):
        learner_of("numpy", "lazy", made, first_weights(made))


def test_ranks_share_steps_batch_and_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    updates = {}
    original = Learner.update

    def watched(self: Learner, step: str, given: Arrays, rate: float) -> Arrays:
        sizes.append(len(given[0]))
        return original(self, step, given, rate)

    monkeypatch.setattr(Learner, "update", watched)
    made = Learner.__init__
    # A NumPy learner refuses ranks, since it cannot average.
    monkeypatch.setattr(Learner, "__init__", lambda self, *given: made(self, *given[:-1]))
    for collective in (None, Rank()):
        sizes.clear()
        reporter = Reports()
        result = run(SMALL, reporter, collective=collective)
        assert result.steps == 600
        assert result.episodes == len(reporter.episodes) == (300 if collective else 600)
        assert set(sizes[1:]) == {32 if collective else 64}
        updates[collective is None] = len(sizes)
    assert updates[True] == updates[False]
    with pytest.raises(UsageError, match="2 ranks cannot share batch_size 63"):
        run(replace(SMALL, batch_size=63), Reports(), collective=Rank())


def test_ranks_that_start_from_different_networks_are_told() -> None:
    class Odd(Rank):
        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

        def mean_array(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
            return values + (np.arange(len(values)) == self.index)

    with pytest.raises(
        HpcrlError, match="rank 0 of 2: its network has 66 weights, but another rank's has a different number"
    ):
        check_same_start(Odd(0), first_weights(dqn(SMALL, Space(1, 2)))["online"])
    with pytest.raises(HpcrlError, match="rank 0 of 2: its initial weights differ from those of other ranks"):
        check_same_start(Odd(2), first_weights(dqn(SMALL, Space(1, 2)))["online"])


def test_the_target_network_stays_as_it_is_until_it_is_renewed() -> None:
    learner = exact(dqn(PLAIN, SPACE), {"online": weights64()})
    first = learner.weights("online")
    learner.update("update", batch(), 0.01)
    assert all((learner.weights("target")[name] == array).all() for name, array in first.items())
    learner.sync("target", 0.25)
    now, part = learner.weights("online"), learner.weights("target")
    for name, array in first.items():
        np.testing.assert_allclose(part[name], array + 0.25 * (now[name] - array), rtol=1e-12)
    learner.sync("target")
    learner.update("update", batch(), 0.01)
    assert all((learner.weights("target")[name] == array).all() for name, array in now.items())
