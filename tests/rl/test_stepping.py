"""Runs that only step environments: all ways take the same steps, and the whole loop of JAX is a loop."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from hpcrl.catalogue.algorithms.random_policy import Settings, fault
from hpcrl.errors import UsageError
from hpcrl.formats.worker import worker_zip
from hpcrl.rl.envs.make import gymnasium_environment
from hpcrl.rl.make import Training, make_training
from hpcrl.rl.runs import Result, Run
from hpcrl.rl.train import train
from hpcrl.rl.vector.make import make_vector
from hpcrl.rl.vector.workers import number_of
from hpcrl.telemetry.phases import PhaseClock
from tests.builders import built_environment
from tests.rl.builders import Brighter, Counter, Reports
from tests.rl.test_frameworks import ROOT, run_program

make_doors = partial(gymnasium_environment, "Doors-v0", 20, {"size": 5})


def stepped(stepping: str, **changes: Any) -> tuple[Training, Result, PhaseClock, Reports]:
    given = {"rollouts": 2, "rollout_steps": 60, "environments": 3, "evaluation_episodes": 4, **changes}
    extra = {name: given.pop(name) for name in ("stop", "checkpoint_file") if name in given}
    clock, reports = PhaseClock(), Reports()
    settings = Settings(stepping=stepping, **given)
    training = make_training("random_policy", settings, "numpy", "eager", make_doors, Run(1, reports, clock))
    return training, train(training, **extra), clock, reports


def counted() -> tuple[int, float]:
    """Return the ended episodes and the mean reward of the same steps, counted one by one."""
    environments, draw = [make_doors() for _ in range(3)], np.random.default_rng([1, 1])
    for environment, seed in zip(environments, np.random.SeedSequence([1, 5, 0]).generate_state(3), strict=True):
        environment.reset(seed=int(seed))
    episodes, rewards = 0, 0.0
    for actions in draw.integers(5, size=(2 * 60, 3)):
        for environment, action in zip(environments, actions, strict=True):
            _, reward, terminated, truncated, _ = environment.step(int(action))
            rewards += reward
            if terminated or truncated:
                episodes += 1
                environment.reset()
    return episodes, rewards / (2 * 60 * 3)


def test_all_ways_take_the_same_steps() -> None:
    found = {}
    ways = [
        ("sync", "cores"),
        ("processes", "cores"),
        ("pipes", "cores"),
        ("pipes", "environments"),
        ("arrays", "cores"),
    ]
    for stepping, workers in ways:
        training, result, clock, reports = stepped(stepping, workers=workers)
        assert (result.outcome, result.steps) == ("completed", 2 * 60 * 3)
        assert clock.counts["env_step"] == 2 * 60 and clock.seconds["env_step"] > 0
        assert reports.episodes == [] and len(reports.evaluations) == 1
        assert training.learner.compiled() == "nothing: the environments are not compiled"
        found[stepping, workers] = result.episodes, training.loop.measures()["reward"]
    episodes, reward = counted()
    assert episodes >= 2 * 60 * 3 // 20 and reward != 0
    assert all(each == (episodes, pytest.approx(reward, rel=1e-6)) for each in found.values())


def test_a_resumed_run_takes_the_actions_that_are_left(tmp_path: Path) -> None:
    asked, file = iter(range(10)), tmp_path / "c.npz"
    whole = stepped("arrays")
    stopped = stepped("arrays", stop=lambda: next(asked) == 1, checkpoint_file=file)
    assert (stopped[1].outcome, stopped[1].steps) == ("preempted", 180)
    resumed = stepped("arrays", checkpoint_file=file)
    assert (resumed[1].outcome, resumed[1].steps) == ("completed", 360)
    assert resumed[2].counts["env_step"] == 60
    # The environments start anew, but the actions go on.
    assert resumed[0].loop.state()[1]["drawn"] == whole[0].loop.state()[1]["drawn"]
    assert resumed[1].episodes > stopped[1].episodes


def test_the_policy_is_random_and_has_the_seed_s_actions() -> None:
    learner = stepped("arrays")[0].learner
    actions = learner.act(np.zeros((5000, 25), np.float32))
    assert np.bincount(actions, minlength=5).min() > 850
    assert learner.state() == {} and learner.weights("any") == {}
    first, second = (stepped("arrays", evaluation_episodes=7)[3].evaluations for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("stepping", "workers"), [("pipes", "cores"), ("pipes", "environments"), ("processes", "environments")]
)
def test_processes_return_what_one_process_returns(stepping: str, workers: str) -> None:
    ways: list[Any] = [make_vector("sync", make_doors, 5), make_vector(stepping, make_doors, 5, workers)]
    processes = {process.pid for process, _ in ways[1]._workers._processes}
    assert len(processes) == (5 if workers == "environments" else min(5, len(os.sched_getaffinity(0))))
    assert os.getpid() not in processes
    draw = np.random.default_rng(0)
    first, other = (each.reset(range(5)) for each in ways)
    assert first.dtype == other.dtype and (first == other).all()
    for _ in range(50):
        actions = draw.integers(5, size=5)
        one, two = (each.step(actions) for each in ways)
        assert all(a.dtype == b.dtype and (a == b).all() for a, b in zip(one, two, strict=True))
    for each in ways:
        each.close()
    assert not any(process.is_alive() for process, _ in ways[1]._workers._processes)


def test_a_process_for_each_environment_is_gymnasium_s_asynchronous_vector() -> None:
    """With its autoreset in the same step, it has the same transitions from the same seeds."""
    ours: Any = make_vector("processes", make_doors, 3, "environments")
    theirs = AsyncVectorEnv([make_doors] * 3, context="spawn", autoreset_mode=AutoresetMode.SAME_STEP)
    assert len(theirs.processes) == len(ours._workers._processes) == 3
    assert (ours.reset([5, 6, 7]) == theirs.reset(seed=[5, 6, 7])[0]).all()
    draw, ends = np.random.default_rng(0), 0
    for _ in range(60):
        actions = draw.integers(5, size=3)
        one, (observations, rewards, terminated, truncated, infos) = ours.step(actions), theirs.step(actions)
        assert (one.observations == observations).all() and (one.rewards == rewards.astype(np.float32)).all()
        assert (one.terminated == terminated).all() and (one.ended == terminated | truncated).all()
        for place in np.flatnonzero(one.ended):
            assert (one.last[place] == infos["final_obs"][place]).all()
            ends += 1
    assert ends >= 3 * 60 // 20
    ours.close()
    theirs.close()


def test_processes_of_many_environments_share_what_they_have_loaded() -> None:
    """They are forked from one process; each one's own memory is a small part of what it shows."""
    environments: Any = make_vector("processes", make_doors, 3, "environments")
    environments.reset(range(3))
    for process, _ in environments._workers._processes:
        memory = psutil.Process(process.pid).memory_full_info()
        assert memory.uss < 0.4 * memory.rss
    environments.close()


def test_there_are_no_more_processes_than_cores_of_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    assert (number_of("cores", 16), number_of("cores", 3), number_of("environments", 16)) == (8, 3, 16)
    # Without task/affinity or task/cgroup, Slurm binds nothing.
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "2")
    assert (number_of("cores", 16), number_of("cores", 1), number_of("environments", 16)) == (2, 1, 16)


def signal_all(environments: Any) -> None:
    for process, _ in environments._workers._processes:
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
            os.kill(process.pid, number)


@pytest.mark.parametrize("workers", ["cores", "environments"])
@pytest.mark.parametrize("stepping", ["processes", "pipes"])
def test_signals_for_the_training_do_not_end_its_processes(stepping: str, workers: str) -> None:
    """Slurm may send them to every process of a step, also while one still starts."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    environments = make_vector(stepping, make_doors, 3, workers)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == held
    signal_all(environments)
    environments.reset(range(3))
    signal_all(environments)
    assert len(environments.step(np.zeros(3, np.int64)).rewards) == 3
    environments.close()


class Simulated(Counter):
    """It has a simulator, which it ends itself."""

    def __init__(self) -> None:
        super().__init__()
        self._simulator = subprocess.Popen(["sleep", "600"])

    def close(self) -> None:
        self._simulator.terminate()
        self._simulator.wait()


@pytest.mark.parametrize("workers", ["cores", "environments"])
def test_a_simulator_of_an_environment_in_a_process_ends_by_term(workers: str) -> None:
    environments: Any = make_vector("pipes", Simulated, 2, workers)
    environments.reset(range(2))
    environments.close()
    assert {process.exitcode for process, _ in environments._workers._processes} == {0}


@pytest.mark.parametrize("workers", ["cores", "environments"])
def test_a_program_that_does_not_close_its_environments_ends(workers: str) -> None:
    """Python's own exit sends TERM to the processes, and waits for them."""
    code = (
        "from hpcrl.rl.vector.make import make_vector\n"
        "from tests.rl.test_stepping import make_doors\n"
        f"environments = make_vector('pipes', make_doors, 2, '{workers}')\n"
        "environments.reset([1, 2])\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)


@pytest.mark.parametrize("hard", [4096, 60])
def test_the_limit_of_open_files_is_raised_or_told(hard: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.rl.workers_program", "24", "60", str(hard)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    if hard > 60:
        assert found == {"ended": 24, "limit": [3 * 24 + 300, hard]}
        return
    told = r"stepping pipes: after \d+ of 24 processes no other could start \(Too many open files\): allow more processes and open files"
    assert re.match(told, found["error"])


@pytest.mark.parametrize("stepping", ["sync", "processes", "pipes"])
def test_a_random_policy_may_be_shown_images(stepping: str) -> None:
    """A reward of 1 for one of two actions, at each of the 8 steps of an episode."""
    reports, settings = (
        Reports(),
        Settings(rollout_steps=16, environments=3, evaluation_episodes=200, stepping=stepping),
    )
    training = make_training("random_policy", settings, "numpy", "eager", Brighter, Run(1, reports, PhaseClock()))
    result = train(training)
    assert (result.outcome, result.steps, result.episodes) == ("completed", 48, 6)
    assert 0.3 < training.loop.measures()["reward"] < 0.7
    assert result.final_score is not None and 3.7 < result.final_score < 4.3


def test_what_a_random_policy_cannot_have() -> None:
    wrong = "2 ranks: a random policy has nothing to share: set `parallelism` to none"
    assert fault(Settings(), 2) == ("environments", wrong) and fault(Settings(), 1) is None
    wrong = "environments: needs stepping processes or pipes, got arrays"
    assert fault(Settings(workers="environments", stepping="arrays"), 1) == ("workers", wrong)
    assert fault(Settings(workers="environments", stepping="pipes"), 1) is None
    with pytest.raises(UsageError, match="random_policy: expected an environment with discrete actions"):
        make_training(
            "random_policy", Settings(), "numpy", "eager", partial(gymnasium_environment, "Pendulum-v1", None), Run(1, Reports(), PhaseClock())
        )  # fmt: skip


@pytest.fixture(scope="module")
def in_jax(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    worker: Path = tmp_path_factory.mktemp("worker") / "worker.zip"
    worker.write_bytes(worker_zip())
    facts: dict[str, Any] = json.loads(run_program(built_environment("jax"), worker, "tests.rl.stepping_program"))
    return facts


@pytest.mark.slow
def test_the_whole_loop_takes_the_steps_that_python_takes(in_jax: dict[str, Any]) -> None:
    assert in_jax["same"]
    for runs in in_jax["runs"].values():
        lazy, fused = runs["lazy"], runs["fused"]
        assert lazy["outcome"] == fused["outcome"] == "completed"
        assert lazy["steps"] == fused["steps"] == 2 * 100 * 20
        assert lazy["episodes"] == fused["episodes"] > 100
        assert lazy["reward"] == pytest.approx(fused["reward"], rel=1e-5) and lazy["reward"] != 0
        assert (lazy["stepping"], fused["stepping"]) == (200, 2)
        assert lazy["compiled"] == "jax.jit: one step of all environments"
        assert fused["compiled"] == "jax.jit: 100 steps of all environments in one scan"


@pytest.mark.slow
def test_a_loop_that_returns_nothing_is_removed_by_the_compiler(in_jax: dict[str, Any]) -> None:
    """The fault of the post's 0.07 s, and what hpcrl's loop does not have."""
    programs = in_jax["programs"]
    assert '"known_trip_count":{"n":"100"}' in programs["results"]
    assert "while" not in programs["nothing"] and len(programs["nothing"].splitlines()) < 20
