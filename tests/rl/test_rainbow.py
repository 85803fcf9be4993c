"""Rainbow's specification and memory against independent references."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hpcrl.catalogue.algorithms.rainbow import Settings
from hpcrl.rl.algorithms.rainbow import Noise
from hpcrl.rl.envs.make import gymnasium_environment
from hpcrl.rl.envs.probes import Probe, wanted_values
from hpcrl.rl.interfaces import Space
from hpcrl.rl.make import make_training
from hpcrl.rl.replay.nstep import NStepReplay
from hpcrl.rl.replay.sumtree import SumTree
from hpcrl.rl.runs import Result, Run
from hpcrl.rl.smoke import Silent
from hpcrl.rl.specification.rainbow import loss_and_gradient, mean_weights, noisy_weights, project, q_values
from hpcrl.rl.train import train
from hpcrl.rl.weights import initial_weights
from hpcrl.telemetry.phases import PhaseClock
from tests.rl.builders import Counter, Reports, made_of
from tests.rl.cases import rainbow_batch

SPACE = Space(4, 2)
SMALL = Settings(hidden=(5, 6), atoms=7, value_minimum=-3.0, value_maximum=4.0, noise_scale=0.5)


def weights64(settings: Settings, seed: int = 0) -> dict[str, NDArray[Any]]:
    drawn = initial_weights(made_of("rainbow", settings, SPACE), np.random.default_rng(seed))["online"]
    return {name: array.astype(np.float64) for name, array in drawn.items()}


@pytest.mark.parametrize(
    ("double", "dueling", "noisy", "distributional"),
    [each for each in product((False, True), repeat=4) if sum(each) in (0, 1, 3, 4)],
)
def test_gradients_by_finite_differences(double: bool, dueling: bool, noisy: bool, distributional: bool) -> None:
    settings = replace(SMALL, double=double, dueling=dueling, noisy=noisy, distributional=distributional)
    weights, target = weights64(settings), weights64(settings, 1)
    given = rainbow_batch(np.random.default_rng(2), settings, 20)
    _, gradients, (losses, outside) = loss_and_gradient(weights, given, settings, target)
    assert list(gradients) == list(weights)
    assert losses.shape == outside.shape == (20,)
    for name, array in weights.items():
        for index in np.ndindex(array.shape):
            values = []
            for sign in (1, -1):
                array[index] += sign * 1e-6
                values.append(loss_and_gradient(weights, given, settings, target)[0])
                array[index] -= sign * 1e-6
            assert gradients[name][index] == pytest.approx((values[0] - values[1]) / 2e-6, abs=1e-6), name


def by_hand(probabilities: NDArray[Any], reward: float, discount: float, atoms: NDArray[Any]) -> NDArray[Any]:
    """Algorithm 1 of Bellemare et al. 2017, written as there."""
    distance = atoms[1] - atoms[0]
    found = np.zeros(len(atoms))
    for place, mass in enumerate(probabilities):
        value = min(max(reward + discount * atoms[place], atoms[0]), atoms[-1])
        b = (value - atoms[0]) / distance
        low, high = int(np.floor(b)), int(np.ceil(b))
        if low == high:
            found[low] += mass
        else:
            found[low] += mass * (high - b)
            found[high] += mass * (b - low)
    return found


def test_projections_are_those_of_the_paper() -> None:
    draw = np.random.default_rng(0)
    atoms = np.linspace(-3, 4, 7)
    probabilities = draw.dirichlet(np.ones(7), 200)
    returns = np.concatenate([draw.normal(scale=3, size=100), np.round(draw.normal(scale=3, size=100))])
    discounts = np.concatenate([draw.choice([0.0, 0.9, 0.729], 150), np.ones(50)])
    found, outside = project(probabilities, returns, discounts, SMALL)
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-12)
    for row in range(200):
        wanted = by_hand(probabilities[row], returns[row], discounts[row], atoms)
        np.testing.assert_allclose(found[row], wanted, atol=1e-12)
        values = returns[row] + discounts[row] * atoms
        assert outside[row] == pytest.approx(probabilities[row][(values < -3) | (values > 4)].sum())
    # A terminal transition puts all its mass at its return, here on an atom; an integer b loses none.
    terminal, _ = project(probabilities[:1], np.array([atoms[2]]), np.zeros(1), SMALL)
    np.testing.assert_allclose(terminal[0], np.eye(7)[2], atol=1e-12)


def test_noise_has_the_variance_that_the_scales_say() -> None:
    settings = replace(SMALL, hidden=(6,), dueling=False, distributional=False)
    made = made_of("rainbow", settings, SPACE)
    weights, noise = weights64(settings), Noise(made, np.random.default_rng(0))
    name = "layers.1.weight"
    drawn = np.array([noisy_weights(weights, noise.draw())[name] - weights[name] for _ in range(4_000)])
    assert np.abs(drawn.mean(axis=0)).max() < 0.02
    # The variance of f(x) = sign(x) sqrt|x| is the mean of |x|, sqrt(2 / pi), and two of them are multiplied.
    wanted = weights[f"{name}_scale"] * np.sqrt(2 / np.pi)
    np.testing.assert_allclose(drawn.std(axis=0), wanted, rtol=0.1)
    assert weights[f"{name}_scale"] == pytest.approx(0.5 / np.sqrt(6))
    assert "layers.0.weight_scale" not in weights


def test_a_sum_tree_draws_as_a_list_does() -> None:
    draw = np.random.default_rng(0)
    tree, plain = SumTree(100), np.zeros(100)
    for _ in range(300):
        count = int(draw.integers(1, 9))
        places = draw.integers(0, 100, count)
        priorities = draw.exponential(size=count) * (draw.random(count) < 0.8)
        tree.set(places, priorities)
        for place, priority in zip(places, priorities, strict=True):
            plain[place] = priority
        assert tree.total == pytest.approx(plain.sum())
    np.testing.assert_array_equal(tree.priorities(np.arange(100)), plain)
    drawn = np.concatenate([tree.draw(1_000, draw) for _ in range(1_000)])
    counts = np.bincount(drawn, minlength=100)
    assert not counts[plain == 0].any() and len(drawn) == 10**6
    np.testing.assert_allclose(counts / 10**6, plain / plain.sum(), atol=2e-4)


def test_rounding_never_draws_what_has_no_priority() -> None:
    tree = SumTree(8)
    tree.set(np.arange(3), np.array([0.1, 0.2, 0.3]))

    class Last:
        def random(self, count: int) -> NDArray[np.float64]:
            return np.full(count, 1.0)  # beyond the largest number that a generator gives

    assert tree.draw(5, Last()).tolist()[-1] == 2  # type: ignore[arg-type]


def stored(replay: NStepReplay, name: str) -> list[float]:
    values: list[float] = replay.state()[name].tolist()
    return values


def test_windows_end_with_their_episode() -> None:
    """Steps 0, 1, ... with rewards 1, 10, 100, ...; the first episode ends by itself after 4 steps, the second is cut."""
    replay = NStepReplay(100, 1, replace(SMALL, n_step=3, gamma=0.5, prioritized=False))
    for step in range(8):
        last = step % 4 == 3
        terminated = last and step < 4
        shown = np.array([step], np.float32)
        replay.add(shown, step, 10.0 ** (step % 4), shown + 1, terminated, last)
    windows = [1 + 5 + 25, 10 + 50 + 250, 100 + 500, 1000]
    assert stored(replay, "returns") == windows * 2
    assert stored(replay, "actions") == list(range(8))
    assert [row[0] for row in replay.state()["following"].tolist()] == [3, 4, 4, 4, 7, 8, 8, 8]
    # An episode that was cut off is bootstrapped over the steps that are there.
    assert stored(replay, "discounts") == [0.125, 0, 0, 0, 0.125, 0.125, 0.25, 0.5]


@pytest.mark.parametrize("capacity", [7, 1_000])
def test_a_block_is_its_transitions_one_after_another(capacity: int) -> None:
    draw, settings = np.random.default_rng(0), replace(SMALL, n_step=3, gamma=0.9)
    blocks, single = (NStepReplay(capacity, 2, settings) for _ in range(2))
    for number, count in enumerate([1, 12, 0, 30, 2, 5]):
        shown, following = (draw.normal(size=(count, 2)).astype(np.float32) for _ in range(2))
        actions, rewards, terminated = draw.integers(0, 9, count), draw.normal(size=count), draw.random(count) < 0.2
        ended = terminated | (draw.random(count) < 0.1)
        blocks.add_block(shown, actions, rewards, following, terminated, ended, number % 2)
        for index in range(count):
            parts = shown[index], int(actions[index]), float(rewards[index]), following[index]
            single.add(*parts, bool(terminated[index]), bool(ended[index]), number % 2)
    state = blocks.state()
    assert state.keys() == single.state().keys()
    for name, array in single.state().items():
        np.testing.assert_array_equal(array, state[name])


@pytest.mark.parametrize("capacity", [7, 1_000])
def test_windows_are_of_one_environment(capacity: int) -> None:
    """Five environments that step together, whose episodes end at different times, against each of them alone."""
    draw, settings = np.random.default_rng(0), replace(SMALL, n_step=3, gamma=0.9)
    together, one_by_one, *alone = (NStepReplay(capacity, 2, settings) for _ in range(7))
    shown = np.zeros((5, 2), np.float32)
    shown[:, 0] = np.arange(5)
    for step in range(40):
        actions, rewards = draw.integers(0, 9, 5), draw.normal(size=5)
        terminated = (draw.random(5) < 0.2) | (step == 30)  # once all at a time
        ended = terminated | (draw.random(5) < 0.1)
        following = shown + np.array([0, 1], np.float32)
        together.add_many(shown, actions, rewards.astype(np.float32), following, terminated, ended)
        for stream, own in enumerate(alone):
            parts = (shown[stream].copy(), int(actions[stream]), float(rewards[stream]), following[stream].copy())
            ends = bool(terminated[stream]), bool(ended[stream])
            own.add(*parts, *ends)
            one_by_one.add(*parts, *ends, stream)
        shown[:, 1] += 1  # an environment may use its array again
    state = together.state()
    for name, array in one_by_one.state().items():
        np.testing.assert_array_equal(array, state[name])
    if capacity == 1_000:
        assert together.size == 5 * 40 - sum(len(pending) for pending in together._pending.values())
        for stream, own in enumerate(alone):
            for name in ("observations", "actions", "returns", "following", "discounts"):
                np.testing.assert_array_equal(own.state()[name], state[name][state["observations"][:, 0] == stream])


def test_priorities_decide_what_is_drawn_and_weights_make_up_for_it() -> None:
    settings = replace(SMALL, n_step=1, priority_exponent=1.0, initial_importance=1.0, total_steps=100)
    replay = NStepReplay(4, 1, settings)
    draw = np.random.default_rng(0)
    for number in range(4):
        replay.add(np.zeros(1, np.float32), number, 0.0, np.zeros(1, np.float32), False, False)
    batch = replay.sample(400, draw)
    assert np.bincount(batch[1]).tolist() == [100] * 4  # new ones are equal
    losses = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    replay.prioritize(losses[batch[1]])
    batch = replay.sample(1_000, draw)
    np.testing.assert_allclose(np.bincount(batch[1]), [100, 200, 300, 400], atol=2)
    np.testing.assert_allclose(batch[5], (losses[0] / losses)[batch[1]], rtol=1e-5)
    other = NStepReplay(4, 1, settings)
    other.load_state(replay.state())
    again = [each.sample(64, np.random.default_rng(3))[1] for each in (replay, other)]
    np.testing.assert_array_equal(*again)


LEARNING = Settings(
    total_steps=1_500, hidden=(16,), learning_rate=3e-3, learning_starts=50, batch_size=32, target_interval=50, gamma=0.9,
    n_step=3, atoms=21, value_minimum=-2.0, value_maximum=2.0, evaluation_interval=1_500, evaluation_episodes=2,
)  # fmt: skip


def trained(settings: Settings, probe: int, seed: int = 1, **extra: Any) -> tuple[Any, Result]:
    run = Run(seed, extra.pop("reports", Silent()), PhaseClock(), extra.pop("collective", None))
    make_environment = extra.pop("environment", lambda: Probe(probe))
    training = make_training("rainbow", settings, "numpy", "eager", make_environment, run)
    return training.learner, train(training, **extra)


@pytest.mark.parametrize("precise", [False, True])
def test_waiting_for_the_losses_is_part_of_the_update(monkeypatch: pytest.MonkeyPatch, precise: bool) -> None:
    """What reads a result waits for a device: it must be in the phase `update`, and only the sum tree in `replay`."""
    clock = PhaseClock()
    settings = replace(LEARNING, total_steps=200, evaluation_interval=200)
    run = Run(1, Silent(), clock, precise_phases=precise)
    training = make_training("rainbow", settings, "numpy", "eager", lambda: Probe(1), run)
    seen: dict[str, list[str]] = {"read": [], "synchronize": [], "prioritize": []}

    def watch(target: Any, name: str) -> None:
        original = getattr(target, name)

        def watched(*arguments: Any) -> Any:
            seen[name].append(clock.phase)
            return original(*arguments)

        monkeypatch.setattr(target, name, watched)

    watch(training.learner, "read")
    watch(training.learner, "synchronize")
    watch(NStepReplay, "prioritize")
    train(training)
    assert len(seen["prioritize"]) == clock.counts["update"] > 50
    assert set(seen["prioritize"]) == {"replay"}
    assert set(seen["read"]) == set(seen["synchronize"]) == {"update"}
    assert len(seen["read"]) >= len(seen["prioritize"])


@pytest.mark.parametrize("number", range(1, 6))
@pytest.mark.parametrize("off", [None, "double", "dueling", "prioritized", "noisy", "distributional", "n_step"])
def test_the_probes_are_solved_whatever_part_is_left_out(number: int, off: str | None) -> None:
    settings = replace(LEARNING, **({} if off is None else {off: 1 if off == "n_step" else False}))
    learner, _ = trained(settings, number)
    shown, wanted = wanted_values(number, 0.9)
    found = q_values(mean_weights(learner.weights("online")), shown, settings)
    np.testing.assert_array_equal(found.argmax(1), wanted.argmax(1))
    # Noise explores less and less: the value of the worse action may still be that of a few tries.
    np.testing.assert_allclose(found.max(1), wanted.max(1), atol=0.1)


@pytest.mark.parametrize(("largest", "value", "told"), [(20.0, 10.0, False), (5.0, 5.0, True)])
def test_a_support_that_does_not_hold_the_returns_shows_in_the_values_and_is_told(
    largest: float, value: float, told: bool
) -> None:
    """The return does not show it: a reward of 1 at each step, for ever, is worth 1 / (1 - gamma) = 10."""
    settings = replace(LEARNING, value_minimum=0.0, value_maximum=largest, total_steps=2_000, evaluation_interval=2_000)
    reports = Reports()
    learner, result = trained(settings, 0, reports=reports, environment=lambda: Counter(20, cut=True))
    assert result.final_score == 20
    shown = np.arange(5, 10, dtype=np.float32)[:, None]
    found = q_values(mean_weights(learner.weights("online")), shown, settings).max(1).mean()
    assert found == pytest.approx(value, rel=0.1)
    assert told == any("lay outside of the support from 0 to 5 and was cut off" in text for text in reports.events)


@pytest.mark.slow
def test_mean_values_of_states_that_cartpole_visits_are_its_discounted_returns() -> None:
    """With a support that holds them; with one that does not, the return can be as good, and the values are not."""
    settings = replace(
        LEARNING, hidden=(64, 64), learning_rate=2e-3, train_interval=2, target_interval=100, total_steps=4_000,
        evaluation_interval=4_000, value_minimum=0.0, value_maximum=20.0,
    )  # fmt: skip
    cartpole = partial(gymnasium_environment, "CartPole-v1", 200)
    holds, _ = trained(settings, 0, seed=3, environment=cartpole)
    weights, environment = mean_weights(holds.weights("online")), cartpole()
    shown: list[NDArray[np.float32]] = []
    wanted: list[float] = []
    for seed in range(100, 110):
        states, over, cut = [environment.reset(seed=seed)[0]], False, False
        while not over and not cut:
            state, _, over, cut, _ = environment.step(int(q_values(weights, states[-1][None], settings).argmax()))
            states.append(state)
        # What a state is worth is known where the pole falls, or does not for 50 steps: less than 0.06 is missing then.
        known = len(states) - (1 if over else 50)
        shown += states[:known]
        wanted += [(1 - 0.9 ** (len(states) - 1 - number)) / (1 - 0.9) for number in range(known)]
    assert np.mean(wanted) > 9, "it learned"
    found = q_values(weights, np.array(shown), settings).max(1).mean()
    assert found == pytest.approx(np.mean(wanted), rel=0.05)
    small = replace(settings, value_maximum=8.0)
    cuts, _ = trained(small, 0, seed=3, environment=cartpole)
    cut_off = q_values(mean_weights(cuts.weights("online")), np.array(shown), small).max(1).mean()
    assert cut_off != pytest.approx(np.mean(wanted), rel=0.1)


def test_one_seed_is_one_run_and_a_resumed_one_is_the_same(tmp_path: Path) -> None:
    """To the last bit, where an episode is one step long: an environment's own state is not in a checkpoint."""
    settings = replace(LEARNING, total_steps=400, evaluation_interval=200)
    whole, _ = trained(settings, 4)
    again, _ = trained(settings, 4)
    other, _ = trained(settings, 4, seed=2)
    asked, file = iter(range(10**6)), tmp_path / "c.npz"
    _, stopped = trained(settings, 4, stop=lambda: next(asked) == 251, checkpoint_file=file)
    assert (stopped.outcome, stopped.steps) == ("preempted", 251)
    resumed, _ = trained(settings, 4, checkpoint_file=file)
    states = [learner.state() for learner in (whole, again, resumed, other)]
    same = [all(state[name].tobytes() == array.tobytes() for name, array in states[0].items()) for state in states]
    assert same == [True, True, True, False]
