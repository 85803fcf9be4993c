"""A learner and its actors over a real MPI: equal to the sequential loop where it must be, nothing lost, no deadlock."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcrl.formats.worker import worker_zip
from hpcrl.rl.interfaces import Space
from hpcrl.rl.topologies.wire import Block, WeightsMessage, heads
from tests.builders import built_environment

ROOT = Path(__file__).parents[2]
# By hand: HPCRL_TOPOLOGY_RUNS=200 pytest tests/rl/test_topologies.py
RUNS = int(os.environ.get("HPCRL_TOPOLOGY_RUNS", "40"))
# Seconds of one case, after which it counts as a deadlock.
WATCHDOG = 120


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("worker") / "worker.zip"
    path.write_bytes(worker_zip())
    return path


def run_cases(
    worker: Path,
    ranks: int,
    cases: list[dict[str, Any]],
    framework: str = "numpy",
    execution: str = "eager",
    **variables: str,
) -> list[dict[str, Any]]:
    """Run cases one after another in one MPI program, and return what each gave."""
    mpirun = shutil.which("mpirun")
    assert mpirun, "mpirun: not found: install openmpi-bin"
    own = {
        "PYTHONPATH": f"{worker}:{ROOT}",
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
    }
    words = [mpirun, "-np", ranks, "--bind-to", "none", "--oversubscribe", "--mca", "btl", "self,vader"]
    words += ["--mca", "pml", "ob1", "--mca", "oob_tcp_if_include", "lo"]
    words += [built_environment(framework).path / "bin/python", "-m", "tests.rl.topology_program"]
    done = subprocess.run(
        [str(word) for word in [*words, framework, execution, json.dumps(cases), WATCHDOG]],
        env=os.environ | own | variables, capture_output=True, text=True, check=False, timeout=60 + WATCHDOG * len(cases),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-10_000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(cases)
    return found


def assert_nothing_is_lost(facts: dict[str, Any]) -> None:
    """Sent, received and stored transitions are the same, of each actor and in their order."""
    sent = {number: other["sums"] for number, other in facts["sent"].items()}
    assert {number: [facts["sums"].get(number, 0), facts["counts"].get(number, 0)] for number in sent} == sent
    assert facts["steps"] == sum(facts["counts"].values()) == sum(facts["facts"]["transitions"])
    assert facts["finite"]


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "execution"), [("numpy", "eager"), ("torch", "eager"), ("jax", "lazy")])
def test_one_actor_that_waits_is_the_sequential_loop_to_the_bit(worker: Path, framework: str, execution: str) -> None:
    lockstep = {"overlap": False}
    images = {"total_steps": 300, "filters": [4, 6], "evaluation_interval": 150}
    cases: list[dict[str, Any]] = [
        {"topology": "pairwise", "settings": lockstep},
        {"topology": "collective", "settings": lockstep},
        {"topology": "pairwise", "settings": lockstep | {"total_steps": 631, "target_interval": 7}, "seed": 2},
        {"topology": "collective", "settings": lockstep | {"n_step": 3}, "algorithm": "rainbow"},
        {"topology": "pairwise", "settings": lockstep | images, "environment": "Brighter"},
        {"topology": "collective", "settings": lockstep | images, "environment": "Brighter"},
    ]
    episodes = {"train_unit": "episodes", "train_interval": 3, "total_episodes": 10, "epsilon_decay": 0.8}
    cases.append(
        {
            "topology": "collective",
            "settings": lockstep | episodes | {"target_unit": "updates", "target_interval": 4, "epochs": 2},
        }
    )
    if framework == "torch":
        cases.append({"topology": "pairwise", "settings": lockstep | {"acting": "framework"}})
    given = [{"actors": 1, "sequential": True, **case} for case in cases]
    for facts in run_cases(worker, 2, given, framework, execution):
        alone = facts["sequential"]
        for name in ("weights", "returns", "sums", "counts", "steps", "updates"):
            assert facts[name] == alone[name], name
        assert [value for _, value in facts["evaluations"]] == [value for _, value in alone["evaluations"]]
        assert set(facts["facts"]["staleness"]) == {"0"}
        assert_nothing_is_lost(facts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "execution"), [("torch", "eager"), ("tensorflow", "eager"), ("tensorflow", "lazy"), ("mxnet", "lazy")]
)
def test_every_framework_learns_from_actors(worker: Path, framework: str, execution: str) -> None:
    """Rank 0 learns in the framework. Actors are NumPy, or the framework itself where the case says so."""
    cases: list[dict[str, Any]] = [
        {"topology": "pairwise", "actors": 1},
        {"topology": "collective", "actors": 2},
        {"topology": "asynchronous", "actors": 2},
        {"topology": "collective", "actors": 2, "settings": {"acting": "framework"}},
        {"topology": "asynchronous", "actors": 2, "algorithm": "rainbow"},
    ]
    for case, facts in zip(cases, run_cases(worker, 3, cases, framework, execution), strict=True):
        assert_nothing_is_lost(facts)
        assert (facts["outcome"], facts["steps"], facts["updates"]) == ("completed", 600, 80), case
        assert [step for step, _ in facts["evaluations"]][-1] == 600


@pytest.mark.slow
def test_actors_that_overlap_are_one_interval_behind(worker: Path) -> None:
    case = {"topology": "collective", "actors": 3}
    one, again = run_cases(worker, 4, [case, case])
    assert_nothing_is_lost(one)
    assert one["counts"] == {"0": 200, "1": 200, "2": 200}
    # No interval before learning_starts makes the weights older.
    assert set(one["facts"]["staleness"]) == {"0", "1"}
    assert one["weights"] == again["weights"] and one["returns"] == again["returns"]


@pytest.mark.slow
def test_an_actor_that_overlaps_does_not_wait_for_updates(worker: Path) -> None:
    """Ten intervals of 0.12 s of exploration and 0.1 s of updates, where a receiver cannot read the sender's memory.

    The weights are too large to be sent at once. The actor waits for the updates of the last interval only.
    """
    settings = {"hidden": [256, 256], "updates": 1, "step_latency": 0.002}
    case = {"topology": "pairwise", "actors": 1, "settings": settings, "learning_lasts": 0.1}
    (facts,) = run_cases(worker, 2, [case], OMPI_MCA_btl_vader_single_copy_mechanism="none")
    assert facts["updates"] == 10
    # Of the whole run: a slow machine makes both longer. It was a half when the actor waited for all updates.
    assert facts["sent"]["0"]["seconds"]["wait"] < 0.25 * sum(facts["seconds"].values())


@pytest.mark.slow
def test_rounds_of_episodes(worker: Path) -> None:
    """Each of two actors plays two episodes in a round; of 11 in all the last two rounds have two and one each."""
    settings = {"train_unit": "episodes", "train_interval": 4, "total_episodes": 11, "total_steps": 10_000}
    for overlap in (False, True):
        case = {"topology": "collective", "actors": 2, "settings": settings | {"overlap": overlap}}
        (facts,) = run_cases(worker, 3, [case])
        assert_nothing_is_lost(facts)
        assert facts["outcome"] == "completed" and facts["episodes"] == 12
        assert facts["evaluations"][-1][0] == facts["steps"] < 1_000


@pytest.mark.slow
def test_no_deadlock_and_nothing_lost_with_random_delays_and_stops(worker: Path) -> None:
    """Delays in every rank; half of the runs are stopped somewhere by a signal to one of the ranks or to several.

    Open MPI sends up to 4 kB at once. Larger messages, such as the weights of two layers of 256 (270 kB) and a block of 240 transitions
    (12 kB), are on their way until the receiver takes them, so that a stop may come in the middle.
    """
    draw = random.Random(0)
    cases = []
    for number in range(RUNS):
        actors = draw.choice((1, 2, 3, 4))
        topology = draw.choice(("collective", "asynchronous", "asynchronous", *(("pairwise",) if actors == 1 else ())))
        case: dict[str, Any] = {
            "topology": topology,
            "actors": actors,
            "delay": draw.choice((0.002, 0.02)),
            "seed": number,
        }
        case["settings"] = {
            "hidden": draw.choice(([16, 16], [256, 256])),
            "train_interval": draw.choice((60, 240)),
            "overlap": draw.random() < 0.7,
            "max_staleness": draw.choice((1, 2, 4)),
            "total_steps": 480,
        }
        if draw.random() < 0.5:
            case |= {
                "stopped": draw.sample(range(actors + 1), draw.randint(1, actors + 1)),
                "stop_after": draw.random() / 2,
            }
        cases.append(case)
    for case, facts in zip(cases, run_cases(worker, 5, cases), strict=True):
        assert_nothing_is_lost(facts)
        ages = {int(age) for age in facts["facts"]["staleness"]}
        bound = case["settings"]["max_staleness"] if case["topology"] == "asynchronous" else case["settings"]["overlap"]
        assert max(ages, default=0) <= bound, case
        assert facts["outcome"] == "completed" or case["stopped"], case
        assert {other["outcome"] for other in facts["sent"].values()} == {facts["outcome"]}
        assert not facts["gave_up"], case
        if facts["outcome"] == "completed":
            assert facts["steps"] == 480


@pytest.mark.slow
@pytest.mark.parametrize(("topology", "actors"), [("pairwise", 1), ("collective", 2), ("asynchronous", 2)])
def test_an_actor_that_is_signalled_waits_for_a_learner_that_evaluates(
    worker: Path, tmp_path: Path, topology: str, actors: int
) -> None:
    """A signal to one actor, while the learner is silent for 4 seconds: nobody gives up, nothing is lost, and it ends all ranks."""
    case: dict[str, Any] = {"topology": topology, "actors": actors, "stopped_by_evaluation": [1]}
    case |= {"evaluation_lasts": 2.0, "evaluating": str(tmp_path / "evaluating")}  # for each of two episodes
    (facts,) = run_cases(worker, 1 + actors, [case])
    assert facts["outcome"] == "preempted" and not facts["gave_up"]
    assert {other["outcome"] for other in facts["sent"].values()} == {"preempted"}
    assert len(facts["evaluations"]) == 1 and facts["steps"] >= 300
    assert_nothing_is_lost(facts)


@pytest.mark.slow
def test_a_slow_actor_is_not_left_behind(worker: Path) -> None:
    case = {"topology": "asynchronous", "actors": 2, "slow": {"1": 0.1}, "settings": {"max_staleness": 1}}
    (facts,) = run_cases(worker, 3, [case])
    assert_nothing_is_lost(facts)
    # Ten intervals of 60 steps: of any three that follow each other, the slow actor has a block of 30 in one.
    assert facts["counts"]["0"] >= 90, facts["counts"]


@pytest.mark.slow
def test_a_stopped_training_goes_on_from_its_checkpoint(worker: Path, tmp_path: Path) -> None:
    for topology in ("collective", "asynchronous"):
        shared: dict[str, Any] = {"topology": topology, "actors": 2, "delay": 0.01, "settings": {"total_steps": 3000}}
        shared["checkpoint"] = str(tmp_path / f"{topology}.npz")
        first, second = run_cases(worker, 3, [shared | {"stop_at": 1000}, shared])
        assert (first["outcome"], second["outcome"]) == ("preempted", "completed")
        assert 0 < first["steps"] < second["steps"] == 3000
        assert sum(second["counts"].values()) == 3000 - first["steps"]


@pytest.mark.slow
def test_the_goal_ends_the_actors_too(worker: Path) -> None:
    settings = {"stop_at_goal": True, "total_steps": 30_000}
    for facts in run_cases(
        worker,
        3,
        [{"topology": name, "actors": 2, "goal": 5.0, "settings": settings} for name in ("collective", "asynchronous")],
    ):
        assert facts["outcome"] == "completed"
        assert facts["steps"] < 1_000
        assert_nothing_is_lost(facts)


def test_a_block_s_bytes_are_its_transitions() -> None:
    block, other = Block(Space(3, 2), 5), Block(Space(3, 2), 5)
    for number in range(4):
        observation = np.full(3, number, np.float32)
        block.add(observation, number, 1 / 3, observation + 1, number == 2, number >= 2)
    block.say(actor=1, number=7, version=2**40, sent=11)
    other.buffer[: block.used().nbytes] = block.used()
    assert [other[name] for name in ("actor", "number", "version", "count", "sent")] == [1, 7, 2**40, 4, 11]
    rows = other.rows()
    assert rows["observation"][:, 0].tolist() == [0, 1, 2, 3] and rows["following"][:, 2].tolist() == [1, 2, 3, 4]
    assert rows["reward"].tolist() == [1 / 3] * 4  # not rounded to float32
    assert rows["terminated"].tolist() == [False, False, True, False]
    assert rows["ended"].tolist() == [False, False, True, True]
    buffer, numbers = heads(2)
    buffer[block.head.nbytes :] = block.head
    assert numbers["count"].tolist() == [0, 4]
    message = WeightsMessage(3)
    message.say(version=5, step=2**33, granted=9)
    message.vector[:] = (1, 2, 3)
    copy = WeightsMessage(3)
    copy.buffer[:] = message.buffer
    assert copy["step"] == 2**33 and copy.vector.tolist() == [1, 2, 3]
