"""Environments in JAX under learners of other frameworks, in the software environments of such cells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcrl.catalogue.registry import frameworks
from hpcrl.formats.plan import read_plan
from hpcrl.formats.record import read_frames
from hpcrl.formats.worker import worker_zip
from tests.builders import built_environment, cells_of, dqn_study, planned, run_cell
from tests.rl.test_frameworks import run_program

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("worker") / "worker.zip"
    path.write_bytes(worker_zip())
    return path


@pytest.fixture(scope="module")
def found(worker: Path) -> dict[str, dict[str, Any]]:
    """What the program found under each learner."""
    facts = {}
    for framework in ("numpy", "torch"):
        built = built_environment(frameworks()[framework].software_of("compiled"))
        facts[framework] = json.loads(run_program(built, worker, "tests.rl.beside_program", framework, "eager"))
    return facts


def test_a_learner_in_another_framework_stores_jax_s_own_transitions(found: dict[str, dict[str, Any]]) -> None:
    for facts in found.values():
        training = facts["training"]
        assert (training["outcome"], training["same"], training["steps"]) == ("completed", True, 2400 // 8)
        assert training["episodes"] > 2400 // 30 and 0.5 < training["learnt"] < 100


def test_compiling_is_no_part_of_the_training(found: dict[str, dict[str, Any]]) -> None:
    for facts in found.values():
        assert facts["training"]["programs"] == [1, 1]
        times, seconds = facts["training"]["compiling"]
        assert times == 1 and seconds > 0


def test_jax_is_set_up_before_it_computes_as_under_its_own_learner(found: dict[str, dict[str, Any]]) -> None:
    for facts in found.values():
        assert facts["settled"] == ["highest", False]


def test_a_cell_of_pytorch_trains_on_environments_in_jax(tmp_path: Path) -> None:
    study = dqn_study(axes={"framework": ["torch"], "environments": [4], "stepping": ["sync", "compiled"]}, goal=None)
    study["workload"] |= {"environment": "Doors-v0", "environment_options": {"size": 5}}
    study["workload"]["hyperparameters"] |= {"train_interval": 8, "learning_starts": 64, "updates": 1}
    plan = planned(tmp_path / "plan", study)
    cell = next(cell for cell in cells_of(plan) if cell["config"]["stepping"] == "compiled")
    built = built_environment("torch-jax")
    assert cell["environment"] == built.environment.key
    done = run_cell(plan, cell["id"], python=built.path / "bin/python")
    assert done.returncode == 0, done.stderr
    assert "not writable" not in done.stderr
    (record,) = (plan / "records").iterdir()
    frames = {frame.kind: frame.payload for frame in read_frames(record)}
    assert frames["footer"]["outcome"] == "completed" and frames["footer"]["steps"] == 1500
    assert {"torch", "jax", "jaxlib"} <= set(frames["header"]["software"])
    assert "--xla_cpu_multi_thread_eigen=false" in frames["header"]["variables"]["XLA_FLAGS"]
    assert read_plan(plan).frameworks_of(cell["config"]) == ["torch", "jax"]
