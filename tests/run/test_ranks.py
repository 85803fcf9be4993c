"""Cells of several ranks on this machine: a record each, one row, and no rank that outlives a failure."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import hpcrl
from hpcrl.collect.merge import collect
from hpcrl.slurm.client import Slurm
from tests.builders import SHARED_CACHE, built_environment, cells_of, dqn_study, planned

pytestmark = pytest.mark.slow


def study(parallelism: str, framework: str = "mxnet", ranks: int = 2) -> dict[str, Any]:
    """Training with faults on demand; MXNet starts fastest."""
    content = dqn_study(
        axes={"framework": [framework], "execution": ["lazy"], "parallelism": [parallelism]},
        resources={"cpus": 1, "tasks": ranks, "memory": "1G", "time": "00:10:00"},
    )
    content["workload"] |= {"environment": "faulty:Faulty-v0"}
    content["workload"]["hyperparameters"] |= {"total_steps": 3000}
    return content


def prepared(tmp_path: Path, content: dict[str, Any], **variables: str) -> dict[str, Any]:
    """Plan a study, and return how its one cell is started as its script would: arguments of a subprocess."""
    plan = planned(tmp_path / "plan", content, "sol")
    shutil.copy(Path(__file__).with_name("faulty.py"), plan)
    (cell,) = cells_of(plan)
    resources = cell["resources"]
    built = built_environment(cell["config"]["framework"], horovod=resources["parallelism"] == "horovod")
    words = [
        built.path / "bin/python",
        "-m",
        "hpcrl.run",
        ".",
        "--cell",
        cell["id"],
        "--ranks",
        str(resources["tasks"]),
    ]
    return {"args": words, "cwd": plan, "env": {**os.environ, **SHARED_CACHE, "PYTHONPATH": "worker.zip", **variables}}


def start(tmp_path: Path, content: dict[str, Any], **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the one cell of a study as its script would."""
    given = prepared(tmp_path, content, **variables)
    return subprocess.run(**given, capture_output=True, text=True, check=False, timeout=600)


def run(
    tmp_path: Path, content: dict[str, Any], **variables: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run the one cell of a study, and return what it said and its row in the dataset."""
    done = start(tmp_path, content, **variables)
    collect([tmp_path / "plan"], tmp_path / "dataset", Slurm())
    (row,) = hpcrl.load(tmp_path / "dataset").to_dict("records")
    return done, row


@pytest.mark.parametrize(
    ("framework", "parallelism", "variables", "collective"),
    [
        ("mxnet", "horovod", {}, "Horovod 0.28.1 over MPI"),
        ("mxnet", "horovod", {"HOROVOD_CONTROLLER": "gloo"}, "Horovod 0.28.1 over Gloo"),
        ("jax", "horovod", {}, "mpi4py over Open MPI v"),
        ("torch", "native", {}, "DistributedDataParallel over Gloo"),
    ],
)
def test_a_record_for_each_rank_and_one_row(
    tmp_path: Path, framework: str, parallelism: str, variables: dict[str, str], collective: str
) -> None:
    done, row = run(tmp_path, study(parallelism, framework), **variables)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (row["outcome"], row["records"], row["steps"]) == ("completed", 2, 3000)
    assert collective in row["collective"]
    assert row["parallelism"] == parallelism
    phases = hpcrl.load(tmp_path / "dataset", "phases")
    assert (phases[phases["phase"] == "communicate"]["seconds"] > 0).all()
    assert set(phases["rank"]) == {0, 1}
    ended = sorted(path.name.partition(".completed")[2] for path in tmp_path.glob("*/attempts/*.completed*"))
    assert ended == ["", "-0", "-1"]


GLOO = {"HOROVOD_CONTROLLER": "gloo"}


@pytest.mark.parametrize(
    ("fault", "variables", "outcome", "reason"),
    [
        ("error", {}, "failed", "rank 1: RuntimeError: the simulator of this rank is gone"),
        ("error", GLOO, "failed", "rank 1: RuntimeError: the simulator of this rank is gone"),
        ("memory", {}, "oom", "rank 1: RuntimeError: CUDA out of memory. Tried to allocate 20.00 GiB"),
        # A rank that is killed says nothing: its supervisor does. mpirun ends the others, and Gloo's notice that it is gone.
        ("kill", {}, "failed", "rank 1: killed by SIGKILL"),
        ("kill", GLOO, "failed", "rank 1: killed by SIGKILL"),
    ],
)
def test_a_rank_that_dies_takes_the_cell_with_it(
    tmp_path: Path, fault: str, variables: dict[str, str], outcome: str, reason: str
) -> None:
    done, row = run(tmp_path, study("horovod"), FAULT=fault, **variables)
    assert done.returncode != 0
    assert (row["outcome"], row["records"]) == (outcome, 2)
    assert row["reason"].startswith(reason)
    if fault != "kill":
        # What it had recorded until then is kept.
        assert len(hpcrl.load(tmp_path / "dataset", "episodes").query("rank == 1")) > 10


def test_ranks_that_disagree_on_shapes(tmp_path: Path) -> None:
    done, row = run(tmp_path, study("horovod"), FAULT="shape")
    assert done.returncode != 0
    assert row["outcome"] == "failed"
    assert "of 2: its network has" in row["reason"]
    assert "all ranks must run the same cell in the same environment" in row["reason"]


def test_jax_without_mpi_says_what_to_do(tmp_path: Path) -> None:
    done = start(tmp_path, study("horovod", "jax"), PATH="/nonexistent")
    assert done.returncode == 2
    assert "jax: has no Horovod binding and averages over MPI, but there is no mpirun here" in done.stderr


@pytest.mark.parametrize("framework", ["jax", "mxnet"])
def test_defaults_are_an_axis(tmp_path: Path, framework: str) -> None:
    """The framework's own initialiser and optimiser, in a cell like any other."""
    content = dqn_study(axes={"framework": [framework], "execution": ["lazy"], "defaults": ["framework", "aligned"]})
    content["workload"]["hyperparameters"] |= {"total_steps": 3000}
    plan = planned(tmp_path / "plan", content)
    built = built_environment(framework)
    for cell in cells_of(plan):
        words = [built.path / "bin/python", "-m", "hpcrl.run", ".", "--cell", cell["id"]]
        environment = {**os.environ, "PYTHONPATH": "worker.zip"}
        subprocess.run(words, cwd=plan, env=environment, capture_output=True, check=True, timeout=600)
    collect([plan], tmp_path / "dataset", Slurm())
    rows = hpcrl.load(tmp_path / "dataset")
    assert list(rows["outcome"]) == ["completed", "completed"]
    assert {json.loads(each)["defaults"] for each in rows["config"]} == {"framework", "aligned"}
    # Other first weights and another epsilon: other episodes from the same seed.
    assert rows["episodes"].nunique() == 2
