"""DQN on images: convolutions by hand and by finite differences, a small training, all frameworks, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcrl.catalogue.algorithms.dqn import Settings
from hpcrl.catalogue.images import filters_fault
from hpcrl.catalogue.registry import algorithms, frameworks
from hpcrl.errors import UsageError
from hpcrl.formats.worker import worker_zip
from hpcrl.rl.envs.flat import Flat
from hpcrl.rl.interfaces import Space
from hpcrl.rl.make import make_training
from hpcrl.rl.replay.uniform import Replay
from hpcrl.rl.runs import Run
from hpcrl.rl.specification.dqn import loss_and_gradient
from hpcrl.rl.specification.networks import forward
from hpcrl.rl.topologies.wire import Block, row_bytes
from hpcrl.rl.weights import pack, unpack
from hpcrl.telemetry.phases import PhaseClock
from tests.builders import built_environment
from tests.rl import image_program
from tests.rl.builders import Brighter, Reports, dqn, first_weights, learner_of
from tests.rl.test_frameworks import COMPILED, MODES, ONE_UPDATE, WHOLE, run_program

SMALL = Settings(hidden=(3,), filters=(2, 3, 2))
SPACE = Space(36 * 36 * 2, 2, channels=2)


def images(count: int, seed: int = 0, space: Space = SPACE) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (count, space.inputs), np.uint8)


def test_convolutions_by_hand() -> None:
    """Each place of each layer is written out, and the last is flat in the order of rows, columns and filters."""
    space = Space(28 * 28 * 2, 2, channels=2)
    weights = first_weights(dqn(Settings(hidden=(), filters=(2, 3)), space))["online"]
    assert [array.shape for array in weights.values()] == [(2, 2, 8, 8), (2,), (3, 2, 4, 4), (3,), (2, 12), (2,)]
    (shown,) = images(1, space=space)
    seen = shown.reshape(28, 28, 2) / 255
    for layer, (side, stride) in enumerate([(6, 4), (2, 2)]):
        weight, bias = weights[f"layers.{layer}.weight"], weights[f"layers.{layer}.bias"]
        kernel, result = weight.shape[-1], np.zeros((side, side, len(weight)))
        for row, column, number in np.ndindex(result.shape):
            part = seen[stride * row : stride * row + kernel, stride * column : stride * column + kernel]
            sums = [
                float(weight[number, channel, i, j]) * part[i, j, channel]
                for channel, i, j in np.ndindex(weight.shape[1:])
            ]
            result[row, column, number] = max(sum(sums) + float(bias[number]), 0)
        seen = result
    assert seen.shape == (2, 2, 3) and len(set(seen.ravel())) > 6
    outputs = forward(weights, shown[None])
    np.testing.assert_allclose(outputs[2][0], seen.ravel(), atol=1e-6)
    np.testing.assert_allclose(
        outputs[3][0], weights["layers.2.weight"] @ seen.ravel() + weights["layers.2.bias"], atol=1e-6
    )


@pytest.mark.parametrize("dueling", [False, True])
def test_gradients_by_finite_differences(dueling: bool) -> None:
    settings = replace(SMALL, dueling=dueling, gamma=0.9)
    made, draw = dqn(settings, SPACE), np.random.default_rng(1)
    online, target = (
        {name: array.astype(np.float64) for name, array in first_weights(made, draw)["online"].items()}
        for _ in range(2)
    )
    rewards = draw.normal(size=4).astype(np.float32)
    given = (images(4, 1), np.array([0, 1, 0, 1]), rewards, images(4, 2), np.array([0, 0, 1, 0], np.float32))
    _, gradients, _ = loss_and_gradient(online, given, settings, target)
    assert list(gradients) and all(gradients[name].shape == array.shape for name, array in online.items())
    for name, array in online.items():
        assert np.abs(gradients[name]).max() > 1e-5, name
        for index in np.ndindex(array.shape):
            values = []
            for sign in (1, -1):
                array[index] += sign * 1e-6
                values.append(loss_and_gradient(online, given, settings, target)[0])
                array[index] -= sign * 1e-6
            assert gradients[name][index] == pytest.approx((values[0] - values[1]) / 2e-6, abs=1e-7), (name, index)


def test_initial_weights_are_as_wide_as_torch_s() -> None:
    first = first_weights(dqn(Settings(filters=(1000,)), SPACE))["online"]["layers.0.weight"]
    bound = 1 / np.sqrt(2 * 8 * 8)
    assert first.shape == (1000, 2, 8, 8) and np.abs(first).max() <= bound
    assert first.std() == pytest.approx(bound / np.sqrt(3), rel=0.02)


def test_packed_convolutions_come_back() -> None:
    """Transposed, a convolution is (row, column, in, out), as JAX and TensorFlow have it."""
    weights = first_weights(dqn(SMALL, SPACE))["online"]
    for transposed in (False, True):
        vector = pack(weights, transposed)
        again = unpack(vector, weights, transposed)
        assert all(np.array_equal(array, again[name]) for name, array in weights.items())
    first = weights["layers.0.weight"]
    size, values = first.size, vector[: first.size].reshape(8, 8, 2, 2)
    assert size == 256 and values[1, 2, 0, 1] == first[1, 0, 1, 2]


def test_an_environment_s_images_are_flat() -> None:
    flat, plain = Flat(Brighter((4, 4, 2))), Brighter((4, 4, 2))
    assert flat.observation_space.shape == (4, 4, 2)
    for seed in (3, 4):
        assert flat.reset(seed=seed)[0].tolist() == plain.reset(seed=seed)[0].ravel().tolist()
    (one, *others), (other, *rest) = flat.step(1), plain.step(1)
    assert one.shape == (32,) and one.tolist() == other.ravel().tolist() and others == rest


def test_bytes_stay_bytes() -> None:
    """In the replay, its checkpoint and the blocks of actors."""
    seen, following = images(2)
    replay, other = (Replay(3, SPACE.inputs, SPACE.dtype) for _ in range(2))
    replay.add(seen, 1, 0.5, following, False)
    state = replay.state()
    assert state["observations"].dtype == state["next_observations"].dtype == np.uint8
    other.load_state(state)
    drawn = other.sample(5, np.random.default_rng(0))
    assert drawn[0].dtype == drawn[3].dtype == np.uint8
    assert (drawn[0] == seen).all() and (drawn[3] == following).all()
    block = Block(SPACE, 2)
    block.add(seen, 1, 0.5, following, False, True)
    assert (block.rows()["observation"][0] == seen).all() and (block.rows()["following"][0] == following).all()
    assert block.used().nbytes - block.head.nbytes == row_bytes(SPACE) == 2 * SPACE.inputs + 8 + 8 + 2


def run(name: str = "dqn", framework: str = "numpy", environment: Any = Brighter, **changes: Any) -> None:
    settings = algorithms()[name].settings(**changes)
    make_training(name, settings, framework, "eager", environment, Run(1, Reports(), PhaseClock()))


def test_what_is_refused() -> None:
    for name in ("rainbow", "ppo"):
        with pytest.raises(UsageError, match=f"{name}: expected observations that are a vector, got uint8 of shape"):
            run(name)
    square = r"a vector or a square image \(height, width, channels\) of uint8, got "
    for shape in ((36, 40, 1), (36, 36)):
        with pytest.raises(UsageError, match=f"dqn: expected observations that are {square}uint8 of shape"):
            run(environment=lambda shape=shape: Brighter(shape))  # type: ignore[misc]

    def real() -> Brighter:
        environment = Brighter()
        environment.observation_space.dtype = np.dtype(np.float32)
        return environment

    with pytest.raises(UsageError, match=f"dqn: expected observations that are {square}float32 of shape"):
        run(environment=real)
    small = "dqn: filters: kernels of 8, 4, 3 need images of at least 36 x 36, got 35 x 35"
    with pytest.raises(UsageError, match=small):
        run(environment=lambda: Brighter((35, 35, 1)))
    with pytest.raises(UsageError, match="dqn: filters: expected one to three convolutions, got 4"):
        run(filters=(1, 2, 3, 4))
    made = dqn(SMALL, SPACE)
    for defaults in ("aligned", "framework"):
        with pytest.raises(UsageError, match="mxnet: hpcrl has no convolutions in MXNet"):
            run(framework="mxnet", defaults=defaults)
    with pytest.raises(UsageError, match="mxnet: hpcrl has no convolutions"):
        learner_of("mxnet", "eager", made, first_weights(made))


@pytest.mark.parametrize(("filters", "smallest"), [((1,), 8), ((1, 1), 20), ((1, 1, 1), 36)])
def test_the_smallest_images(filters: tuple[int, ...], smallest: int) -> None:
    assert filters_fault(filters, smallest) is None
    assert filters_fault(filters, smallest - 1)
    shapes = dqn(Settings(hidden=(), filters=filters), Space(smallest**2, 2, 1)).groups["online"][0].shapes
    assert shapes[-1] == (2, 1)


def test_vectors_ignore_filters() -> None:
    plain, other = (first_weights(dqn(Settings(filters=filters)))["online"] for filters in ((1,), (9, 9)))
    assert all(array.tobytes() == other[name].tobytes() for name, array in plain.items())


def test_numpy_learns_from_images(capsys: pytest.CaptureFixture[str]) -> None:
    image_program.main("numpy", "eager")
    facts = json.loads(capsys.readouterr().out)
    assert_it_learns(facts)
    assert_it_goes_on(facts)


def assert_it_learns(facts: dict[str, Any]) -> None:
    # A random policy has 4 of 8. The second run has the framework's own initial weights and optimiser.
    assert facts["score"] >= 7 and facts["score by NumPy"] >= 7, facts


def assert_it_goes_on(facts: dict[str, Any]) -> None:
    assert facts["identical"], facts
    assert (facts["stopped"], facts["resumed"]) == (["preempted", 133], ["completed", 160]), facts


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("worker") / "worker.zip"
    path.write_bytes(worker_zip())
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "execution"), [each for each in MODES if "image" in frameworks()[each[0]].observations]
)
def test_frameworks_on_images(worker: Path, framework: str, execution: str) -> None:
    """Parity with the specification, as in test_frameworks.py, and small trainings."""
    part = "whole" if (framework, execution) in WHOLE else "part"
    out = run_program(built_environment(framework), worker, "tests.rl.image_program", framework, execution, part)
    facts: dict[str, Any] = json.loads(out.splitlines()[-1])
    if part == "whole":
        assert_it_learns(facts)
    assert_it_goes_on(facts)
    for case in facts["parity"]:
        assert case["strays"][0] < ONE_UPDATE and case["strays"][9] < 1e-6, case
        assert case["moved"] > 1e-3, case
        assert (case["agree"], case["restored"]) == (200, True), case
        assert COMPILED.get((framework, execution), "nothing: ") in case["compiled"], case
    assert max(case["actions"] for case in facts["parity"]) == 3
    shapes = [[64, 2, 8, 8], [64], [32, 64, 4, 4], [32], [24, 512], [24], [3, 24], [3]]
    assert facts["shapes"] == shapes
    # PyTorch: uniform +-1/sqrt(inputs); Keras: Glorot uniform; Flax: LeCun normal, where a filter's inputs are in * kernel^2.
    inputs, outputs = (2 * 64, 64 * 16), (64 * 64, 32 * 16)
    wanted = {
        "torch": [(1 / (3 * given)) ** 0.5 for given in inputs],
        "tensorflow": [(2 / (given + after)) ** 0.5 for given, after in zip(inputs, outputs, strict=True)],
        "jax": [(1 / given) ** 0.5 for given in inputs],
    }
    assert facts["first weights"] == pytest.approx(wanted[framework], rel=0.05)
