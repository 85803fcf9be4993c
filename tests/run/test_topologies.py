"""Cells of a learner and actors, as their scripts run them: records, a rank that dies, what the checkpoint is for."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import hpcrl
from hpcrl.collect.merge import collect
from hpcrl.slurm.client import Slurm
from tests.builders import built_environment, cells_of, dqn_study
from tests.run.test_ranks import run

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
    assert {"update", "send", "wait"} <= set(phases[0].index) and "env_step" not in phases[0].index
    for rank in range(1, actors + 1):
        assert {"env_step", "act", "send", "receive", "wait"} <= set(phases[rank].index)
        assert "update" not in phases[rank].index


@pytest.mark.parametrize("topology", ["collective", "asynchronous"])
@pytest.mark.parametrize(
    ("fault", "reason"),
    [("error", "rank 1: RuntimeError: the simulator of this rank is gone"), ("kill", "rank 1: killed by SIGKILL")],
)
def test_a_rank_that_dies_ends_the_cell_and_the_next_attempt_goes_on(
    tmp_path: Path, topology: str, fault: str, reason: str
) -> None:
    # The bound of the staleness makes even the slower of two asynchronous actors take the 700 steps before its fault.
    content = study(topology, 2, total_steps=12_000)
    begun = time.monotonic()
    done, row = run(tmp_path, content, FAULT=fault)
    assert time.monotonic() - begun < 60  # it does not wait for ever
    assert done.returncode != 0
    assert row["outcome"] == "failed" and row["reason"].startswith(reason)
    (cell,) = cells_of(tmp_path / "plan")
    words = [
        built_environment("numpy").path / "bin/python",
        "-m",
        "hpcrl.run",
        ".",
        "--cell",
        cell["id"],
        "--ranks",
        "3",
    ]
    environment = {**os.environ, "PYTHONPATH": "worker.zip"}
    subprocess.run(words, cwd=tmp_path / "plan", env=environment, capture_output=True, check=True, timeout=300)
    collect([tmp_path / "plan"], tmp_path / "dataset", Slurm())
    again = hpcrl.load(tmp_path / "dataset").query("outcome == 'completed'").iloc[0]
    assert again["steps"] == 12_000
    assert again["resumed_step"] > 500
