"""Cells of a learner and actors, as their scripts run them: records, a rank that dies or is silent, what the checkpoint is for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

import hpcrl
from hpcrl.collect.merge import collect
from hpcrl.formats.attempts import ATTEMPTS
from hpcrl.slurm.client import Slurm
from tests.builders import built_environment, cells_of, dqn_study
from tests.run.test_ranks import prepared, run, start

pytestmark = pytest.mark.slow


def study(topology: str, actors: int, **settings: Any) -> dict[str, Any]:
    content = dqn_study(axes={"framework": ["numpy"], "topology": [topology], "actors": [actors]})
    content["resources"] = {"cpus": 1, "memory": "1G", "time": "00:10:00"}
    content["workload"] |= {"environment": "faulty:Faulty-v0"}
    content["workload"]["hyperparameters"] |= {"total_steps": 4000, "acting": "numpy", **settings}
    return content


@pytest.mark.parametrize(("topology", "actors"), [("pairwise", 1), ("collective", 2), ("asynchronous", 2)])
def test_a_record_for_each_rank_and_what_came_from_whom(tmp_path: Path, topology: str, actors: int) -> None:
    done, row = run(tmp_path, study(topology, actors))
    assert done.returncode == 0, done.stderr[-2000:]
    assert (row["outcome"], row["records"], row["tasks"], row["steps"]) == ("completed", 1 + actors, 1 + actors, 4000)
    messages = json.loads(row["messages"])
    assert sum(messages["transitions"]) == 4000 and len(messages["transitions"]) == actors
    assert sum(messages["staleness"].values()) <= sum(messages["blocks"])
    phases = hpcrl.load(tmp_path / "dataset", "phases").set_index(["rank", "phase"])["seconds"]
    assert {"update", "send", "receive", "wait"} <= set(phases[0].index) and "env_step" not in phases[0].index
    for rank in range(1, actors + 1):
        assert {"env_step", "act", "send", "receive", "wait"} <= set(phases[rank].index)
        assert "update" not in phases[rank].index


@pytest.mark.parametrize("window", [{}, {"profile_from": 1000, "profile_steps": 500}])
def test_learner_and_actors_have_a_profile_each_and_a_window_is_the_learner_s(
    tmp_path: Path, window: dict[str, int]
) -> None:
    done, row = run(tmp_path, study("asynchronous", 2) | {"profile": "cprofile"} | window)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (row["outcome"], row["records"]) == ("completed", 3)
    ranks = sorted(path.name.split(".")[-2] for path in (tmp_path / "plan" / "profiles").iterdir())
    assert ranks == (["r0"] if window else ["r0", "r1", "r2"])
    told = "an actor is profiled as a whole or not at all: profile_from and profile_steps are of the learner"
    assert (told in (row["notes"] or "")) == bool(window)


def row_after_fault(tmp_path: Path, content: dict[str, Any], fault: str, rank: int, **variables: str) -> dict[str, Any]:
    """Run a cell of which a rank fails, and return its row in the dataset. The cell ends within ten seconds of the fault."""
    file = tmp_path / "fault"
    done = start(tmp_path, content, FAULT=fault, FAULT_RANK=str(rank), FAULT_FILE=str(file), **variables)
    seconds = time.time() - float(file.read_text())
    print(f"the cell ended {seconds:.1f} s after the fault of rank {rank} ({fault})")
    assert done.returncode != 0 and seconds < 10
    assert list((tmp_path / "plan" / ATTEMPTS).glob("*.failed"))  # by which `hpcrl status` tells it from a preemption
    collect([tmp_path / "plan"], tmp_path / "dataset", Slurm())
    (row,) = hpcrl.load(tmp_path / "dataset").to_dict("records")
    return row


def next_attempt(tmp_path: Path) -> Any:
    """Run the cell again, without a fault, and return the row of the attempt that completed."""
    (cell,) = cells_of(tmp_path / "plan")
    ranks = cell["resources"]["tasks"]
    words = [
        built_environment("numpy").path / "bin/python",
        "-m",
        "hpcrl.run",
        ".",
        "--cell",
        cell["id"],
        "--ranks",
        str(ranks),
    ]
    environment = {**os.environ, "PYTHONPATH": "worker.zip"}
    subprocess.run(words, cwd=tmp_path / "plan", env=environment, capture_output=True, check=True, timeout=300)
    collect([tmp_path / "plan"], tmp_path / "dataset", Slurm())
    return hpcrl.load(tmp_path / "dataset").query("outcome == 'completed'").iloc[0]


@pytest.mark.parametrize("topology", ["collective", "asynchronous"])
@pytest.mark.parametrize(
    ("fault", "reason"),
    [("error", "rank 1: RuntimeError: the simulator of this rank is gone"), ("kill", "rank 1: killed by SIGKILL")],
)
def test_an_actor_that_dies_ends_the_cell_and_the_next_attempt_goes_on(
    tmp_path: Path, topology: str, fault: str, reason: str
) -> None:
    # The bound of the staleness makes even the slower of two asynchronous actors take the 700 steps before its fault.
    row = row_after_fault(tmp_path, study(topology, 2, total_steps=12_000), fault, rank=1)
    assert row["outcome"] == "failed" and row["reason"].startswith(reason)
    again = next_attempt(tmp_path)
    assert again["steps"] == 12_000
    assert again["resumed_step"] > 500


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("error", "rank 0: RuntimeError: the simulator of this rank is gone"), ("kill", "rank 0: killed by SIGKILL")],
)
def test_a_learner_that_dies_in_its_first_evaluation_ends_the_cell_and_the_next_attempt_begins_anew(
    tmp_path: Path, fault: str, reason: str
) -> None:
    row = row_after_fault(tmp_path, study("collective", 2, total_steps=12_000), fault, rank=0)
    assert row["outcome"] == "failed" and row["reason"].startswith(reason)
    again = next_attempt(tmp_path)
    assert again["steps"] == 12_000
    assert pd.isna(again["resumed_step"])


@pytest.mark.parametrize("topology", ["pairwise", "collective", "asynchronous"])
def test_a_learner_that_is_killed_later_goes_on_from_its_last_evaluation(tmp_path: Path, topology: str) -> None:
    """It has no time to write anything when it dies: in its third evaluation, at step 1,500."""
    content = study(topology, 1 if topology == "pairwise" else 2, total_steps=3_000) | {"goal": None}
    row = row_after_fault(tmp_path, content, "kill", rank=0, FAULT_EPISODE="3")
    assert row["outcome"] == "failed" and row["reason"].startswith("rank 0: killed by SIGKILL")
    again = next_attempt(tmp_path)
    assert again["steps"] == 3_000
    assert 1_000 <= again["resumed_step"] < 1_500


@pytest.mark.parametrize("topology", ["collective", "asynchronous"])
def test_a_signal_ends_a_cell_whose_actor_does_not_answer(tmp_path: Path, topology: str) -> None:
    """Nobody has failed: the learner keeps a checkpoint, and fails itself, so that the launcher ends the silent actor."""
    fault = tmp_path / "fault"
    content = study(topology, 2, total_steps=12_000)
    cell = subprocess.Popen(**prepared(tmp_path, content, FAULT="silence", FAULT_FILE=str(fault)))
    deadline = time.monotonic() + 300
    try:
        while not fault.exists():
            assert cell.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        cell.send_signal(signal.SIGTERM)
        assert cell.wait(120) != 0
    finally:
        with suppress(psutil.NoSuchProcess):  # it has ended
            for process in (*psutil.Process(cell.pid).children(recursive=True), cell):
                process.kill()
    collect([tmp_path / "plan"], tmp_path / "dataset", Slurm())
    (row,) = hpcrl.load(tmp_path / "dataset").to_dict("records")
    assert row["outcome"] == "preempted"
    assert row["reason"] == "after a signal an actor did not answer for 1 s: a checkpoint was kept"
    assert next_attempt(tmp_path)["resumed_step"] > 500


def test_a_learner_that_fails_does_not_wait_for_slow_actors(tmp_path: Path) -> None:
    """In its first evaluation, while the actor takes 12 seconds for the round that is under way."""
    slow = {"step_latency": 0.15, "train_interval": 80, "evaluation_interval": 80, "total_steps": 400}
    row = row_after_fault(tmp_path, study("pairwise", 1, **slow), "error", rank=0)
    assert row["outcome"] == "failed"
    assert row["reason"].startswith("rank 0: RuntimeError: the simulator of this rank is gone")


def test_a_network_of_another_shape_is_told(tmp_path: Path) -> None:
    done = start(tmp_path, study("collective", 2), FAULT="shape")
    assert done.returncode != 0
    collect([tmp_path / "plan"], tmp_path / "dataset", Slurm())
    (row,) = hpcrl.load(tmp_path / "dataset").to_dict("records")
    assert row["reason"].startswith("rank 1: rank 1 of 3: its network has ")
    assert "all ranks must run the same cell in the same environment" in row["reason"]


def test_a_training_that_diverged_has_no_checkpoint(tmp_path: Path) -> None:
    """One was written after the first evaluation, before anything was learnt."""
    wild = {"optimizer": "sgd", "learning_rate": 1e30, "max_gradient_norm": 0, "learning_starts": 600}
    done, row = run(tmp_path, study("collective", 2, **wild))
    assert row["outcome"] == "diverged", done.stderr[-2000:]
    assert list((tmp_path / "plan/checkpoints").iterdir()) == []
