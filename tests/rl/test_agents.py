"""Trained agents: what is kept of a training, their files, and that they act as they were evaluated."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcrl
from hpcrl.catalogue.algorithms import dqn, ppo, rainbow, td3, vpg
from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.worker import worker_zip
from hpcrl.rl import agents, checkpoint
from hpcrl.rl import train as training_module
from hpcrl.rl.agents import Agent, load_agent
from hpcrl.rl.envs.make import gymnasium_environment
from hpcrl.rl.evaluation import evaluate, start_seeds
from hpcrl.rl.frameworks.numpy.core import PAGES, Learner
from hpcrl.rl.interfaces import Algorithm, Space, Weights
from hpcrl.rl.make import Training, make_training
from hpcrl.rl.normalization import Moments
from hpcrl.rl.runs import Run
from hpcrl.rl.train import train
from hpcrl.telemetry.phases import PhaseClock
from tests.builders import built_environment
from tests.rl.builders import CARTPOLE, Reports, first_weights, made_of
from tests.rl.test_frameworks import run_program

IMAGES = Space(36 * 36, 3, channels=1)
REAL = Space(3, 2, bounds=((-1.0, 1.0), (-np.inf, 2.0)))
CASES = {
    "dqn": ("dqn", dqn.Settings(hidden=(8, 8), dueling=True), CARTPOLE),
    "dqn on images": ("dqn", dqn.Settings(hidden=(8,), filters=(4, 4)), IMAGES),
    "rainbow": ("rainbow", rainbow.Settings(hidden=(8,), noisy=True), CARTPOLE),
    "ppo": ("ppo", ppo.Settings(hidden=(8,), normalize_observations=True), CARTPOLE),
    "vpg": ("vpg", vpg.Settings(hidden=(8,)), REAL),
    "td3": ("td3", td3.Settings(hidden=(8,)), Space(3, 2, bounds=((-1.0, 1.0),) * 2)),
}


def wild_weights(algorithm: Algorithm) -> dict[str, Weights]:
    """Return weights with which the actions of few observations differ."""
    draw = np.random.default_rng(1)
    first = first_weights(algorithm)
    return {
        group: {name: draw.normal(size=array.shape).astype(np.float32) for name, array in weights.items()}
        for group, weights in first.items()
    }


def made(case: str) -> Agent:
    name, settings, space = CASES[case]
    algorithm = made_of(name, settings, space)
    weights = wild_weights(algorithm)[algorithm.acts_with]
    moments = None
    if getattr(settings, "normalize_observations", False):
        moments = Moments(np.array([3, -2, 0, 1], np.float32), np.array([4, 1, 9, 2], np.float32), np.float32(50))
    wide = (np.array([-2, 0], np.float32), np.array([2, 8], np.float32)) if name == "td3" else None
    return Agent(algorithm, weights, moments, "CartPole-v1", {"a": [1]}, 7, 300, 12.5, {"cell": "abc"}, wide)


def observations_of(agent: Agent) -> Any:
    draw, space = np.random.default_rng(0), agent.algorithm.space
    if space.channels:
        return (draw.random((20, 36, 36, 1)) * np.linspace(5, 250, 20).reshape(-1, 1, 1, 1)).astype(np.uint8)
    return (3 * draw.normal(size=(20, space.inputs))).astype(np.float32)


@pytest.mark.parametrize("case", CASES)
def test_an_agent_that_was_saved_acts_as_its_learner(tmp_path: Path, case: str) -> None:
    agent = made(case)
    agent.save(tmp_path / "a.npz")
    found = hpcrl.load_agent(tmp_path / "a.npz")
    observations, space = observations_of(agent), agent.algorithm.space
    rows = observations.reshape(20, -1)
    if agent.moments is not None:
        rows = ((rows - [3, -2, 0, 1]) / np.sqrt([4, 1, 9, 2])).astype(np.float32)
    page = __import__(f"{PAGES}.{agent.algorithm.name}", fromlist=["greedy"])
    learner = Learner(agent.algorithm, page, wild_weights(agent.algorithm))
    expected = learner.act(rows)
    if case == "td3":  # from -2 to 2, and from 0 to 8
        expected = expected * np.float32([2, 4]) + np.float32([0, 4])
    assert len({tuple(np.atleast_1d(each)) for each in expected}) > 1
    np.testing.assert_array_equal(found.act(observations), expected)
    one = found.act(observations[3])
    assert isinstance(one, np.ndarray if space.continuous else int)
    np.testing.assert_allclose(one, expected[3], rtol=1e-6)
    facts = (found.environment, found.options, found.max_episode_steps, found.step, found.score, found.origin)
    assert facts == ("CartPole-v1", {"a": [1]}, 7, 300, 12.5, {"cell": "abc"})
    assert (found.algorithm.space, found.algorithm.settings) == (space, agent.algorithm.settings)
    with np.load(tmp_path / "a.npz", allow_pickle=False) as archive:
        assert {array.dtype for array in (archive[name] for name in archive.files)} <= {
            np.dtype(kind) for kind in (np.float32, np.float64, np.uint8)
        }


def test_an_observation_of_another_shape_is_refused() -> None:
    with pytest.raises(UsageError, match=r"expected an observation of shape \(4,\), or several, got shape \(2, 3\)"):
        made("dqn").act(np.zeros((2, 3)))
    assert made("dqn on images").act(np.zeros(36 * 36, np.uint8)) in range(3)


def changed(path: Path, **changes: Any) -> None:
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    facts = json.loads(arrays.pop("facts").tobytes()) | changes.pop("facts", {})
    with path.open("wb") as file:
        np.savez(file, facts=np.frombuffer(json.dumps(facts).encode(), np.uint8), **arrays | changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"facts": {"format": "hpcrl-plan"}}, "is not an agent that hpcrl saved, or it is damaged"),
        ({"facts": {"version": 2}}, "has agent format 2, but this hpcrl reads format 1"),
        ({"facts": {"algorithm": "dqm"}}, "has the algorithm 'dqm', which this hpcrl lacks; did you mean 'dqn'"),
        ({"facts": {"settings": {"gamma": 7}}}, "dqn: gamma: expected a number"),
        ({"facts": {"settings": {"hidden": [9]}}}, "is not an agent"),
        ({"facts": {"settings": {"hidden": [100_000, 100_000]}}}, "is not an agent"),
        ({"facts": {"space": {"inputs": 4}}}, "is not an agent"),
        ({"facts": {"space": {"inputs": -4, "actions": 2, "channels": 0, "limit": None}}}, "is not an agent"),
        ({"facts": {"max_episode_steps": -1}}, "is not an agent"),
        ({"facts": {"max_episode_steps": "x"}}, "is not an agent"),
        ({"weights/extra": np.zeros(3, np.float32)}, "is not an agent"),
        (
            {"moments/mean": np.zeros(3), "moments/variance": np.ones(3), "moments/count": np.ones(())},
            "is not an agent",
        ),
    ],
)
def test_a_file_that_is_something_else_is_one_sentence(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    made("dqn").save(tmp_path / "a.npz")
    changed(tmp_path / "a.npz", **changes)
    with pytest.raises(UsageError) as caught:
        load_agent(tmp_path / "a.npz")
    assert str(caught.value).startswith(f"{tmp_path / 'a.npz'}: {said}")


def test_damaged_and_hostile_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.npz"
    made("dqn").save(path)
    whole = path.read_bytes()
    for content in (b"", b"no archive", whole[:200], whole[:-40]):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="is not an agent that hpcrl saved, or it is damaged"):
            load_agent(path)
    with zipfile.ZipFile(path, "w") as archive:  # an array of 2^50 bytes, says its header
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, {"descr": "<f8", "fortran_order": False, "shape": (2**47,)})
        archive.writestr("weights/a.npy", head.getvalue())
    with pytest.raises(UsageError, match="is not an agent"):
        load_agent(path)
    changed_by_code = {"facts": np.frombuffer(b"{}", np.uint8), "weights/a": np.array([{"code": print}], object)}
    with path.open("wb") as file:
        np.savez(file, **changed_by_code)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="is not an agent"):
        load_agent(path)
    monkeypatch.setattr(agents, "MOST_BYTES", 2**20)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("weights/a.npy", bytes(2**22))
    assert path.stat().st_size < 2**20
    with pytest.raises(UsageError, match="holds more than 1 MiB, which no agent of hpcrl does"):
        load_agent(path)
    (tmp_path / "link.npz").symlink_to(path)
    with pytest.raises(UsageError, match="cannot be read: it is a symbolic link"):
        load_agent(tmp_path / "link.npz")


def test_a_large_agent_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = made("dqn")
    monkeypatch.setattr(agents, "MOST_BYTES", agent.size)
    agent.save(tmp_path / "a.npz")
    monkeypatch.setattr(agents, "MOST_BYTES", agent.size - 1)
    with pytest.raises(HpcrlError, match="was not written: the agent has 0 MiB of weights, and the maximum is"):
        agent.save(tmp_path / "b.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


SHORT: dict[str, Any] = {"total_steps": 600, "hidden": (16,), "evaluation_interval": 100, "evaluation_episodes": 3}
SETTINGS = {
    "dqn": dqn.Settings(**SHORT, learning_starts=50),
    "ppo": ppo.Settings(
        **SHORT, environments=2, rollout_steps=25, minibatch_size=50, epochs=4, normalize_observations=True
    ),
    "td3": td3.Settings(**SHORT, learning_starts=50),
}


def environment_for(name: str) -> Any:
    """Return an environment; the actions of the pendulum go from -2 to 2."""
    return gymnasium_environment("Pendulum-v1" if name == "td3" else "CartPole-v1", 60)


def prepared(name: str) -> Training:
    run = Run(3, Reports(), PhaseClock())
    return make_training(name, SETTINGS[name], "numpy", "eager", lambda: environment_for(name), run)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_training_keeps_its_best_and_its_last_policy(name: str) -> None:
    """Each acts again as it did in its evaluation, with the weights and the scale of that time."""
    training = prepared(name)
    result = train(training)
    reports: Any = training.run.reporter
    scores = [value for _, value in reports.evaluations]
    assert len(set(scores)) > 1
    best, last = result.policies["best"], result.policies["last"]
    assert (last.step, last.score) == reports.evaluations[-1] == (600, result.final_score)
    assert (best.step, best.score) == reports.evaluations[scores.index(max(scores))] == (best.step, result.best_score)
    for policy in (best, last):
        wide = (np.full(1, -2, np.float32), np.full(1, 2, np.float32)) if name == "td3" else None
        agent = Agent(training.algorithm, dict(policy.weights), policy.moments, "any", stretched=wide)
        environments = [environment_for(name) for _ in range(3)]
        assert evaluate(agent.act, environments, start_seeds(3, 3, 3)).mean() == policy.score


@pytest.mark.parametrize("name", SETTINGS)
def test_a_resumed_training_still_has_its_best_policy(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([5.0, 9.0, 9.0, 6.0, 7.0, 8.0])
    monkeypatch.setattr(training_module, "_mean_return", lambda *arguments: next(scores))
    first = prepared(name)
    done = train(first, stop=lambda: first.loop.step >= 300, checkpoint_file=tmp_path / "c.npz")
    assert done.outcome == "preempted"
    assert (done.policies["best"].step, done.policies["last"].step) == (200, 300)
    result = train(prepared(name), checkpoint_file=tmp_path / "c.npz")
    best = result.policies["best"]
    assert (best.step, best.score, result.policies["last"].step) == (200, 9.0, 600)
    assert best.weights.keys() == done.policies["best"].weights.keys()
    for key, array in done.policies["best"].weights.items():
        np.testing.assert_array_equal(best.weights[key], array)
        assert not np.array_equal(result.policies["last"].weights[key], array)
    np.testing.assert_equal(best.moments, done.policies["best"].moments)
    assert (best.moments is None) == (name != "ppo")


def test_a_checkpoint_of_an_older_hpcrl_has_no_policy(tmp_path: Path) -> None:
    first = prepared("dqn")
    train(first, stop=lambda: first.loop.step >= 300, checkpoint_file=tmp_path / "c.npz")
    saved = checkpoint.load(tmp_path / "c.npz")
    assert saved is not None
    arrays, facts = saved
    facts["best"] = 1e9
    kept = {name: array for name, array in arrays.items() if not name.startswith("best/")}
    checkpoint.save(tmp_path / "c.npz", kept, {name: value for name, value in facts.items() if name != "best_step"})
    assert train(prepared("dqn"), checkpoint_file=tmp_path / "c.npz").policies.keys() == {"last"}


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["torch", "jax", "mxnet"])
def test_the_framework_reads_its_own_file(tmp_path: Path, framework: str) -> None:
    (tmp_path / "worker.zip").write_bytes(worker_zip())
    built = built_environment(framework)
    out = run_program(
        built, tmp_path / "worker.zip", "tests.rl.saving_program", framework, str(tmp_path / "a-best.npz")
    )
    assert json.loads(out.splitlines()[-1]) == {"files": [f"a-best{SUFFIXES[framework]}"], "equal": True}


SUFFIXES = {"torch": ".pt", "jax": ".msgpack", "mxnet": ".params"}
