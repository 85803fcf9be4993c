"""The chain of the Cirrus study, in miniature, on a real Slurm that imitates its cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

import hpcrl
from hpcrl.formats.plan import read_plan
from tests.builders import ENVIRONMENTS, planned, write_yaml
from tests.slurm.conftest import Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("numpy_environment")]


def test_the_chain_of_the_cirrus_study_is_one_submission_with_a_report_at_its_end(
    legacy_cluster: Cluster, tmp_path: Path
) -> None:
    """One job for each number of cores, one after another, as in the paper; in NumPy, with short runs, and without its GPUs and second node."""
    short = {"total_steps": 2304, "evaluation_interval": 1152}
    algorithms = [
        {"algorithm": "ppo", "environments": 12, "minibatch_size": 192, **short},
        {"algorithm": "rainbow", "learning_starts": 504, **short},
    ]
    sizes = [{"cpus": cores} for cores in (2, 4, 16)]
    axes = {"algorithm": algorithms, "framework": [{"framework": "numpy", "execution": "eager"}], "size": sizes}
    content = {
        "extends": "cirrus-ppo-rainbow",
        "name": "chain",
        "axes": axes,
        "seeds": 1,
        "calibration_seconds": 0,
        "idle_seconds": 0,
    }
    study = write_yaml(tmp_path / "s.yaml", content)
    plan = planned(tmp_path / "p", str(study), "cirrus-legacy", allow_retired=True, environments_root=str(ENVIRONMENTS))
    assert legacy_cluster.submit(plan) == 6
    status = legacy_cluster.wait(plan, 400)
    assert status.counts() == {"COMPLETED": 6}
    assert (status.stages["collect"].state, status.stages["report"].state) == ("COMPLETED", "COMPLETED")
    assert len([job for job in read_plan(plan).jobs if job.stage == "cells"]) == 3
    rows = hpcrl.load(plan / "dataset")
    ran = rows.sort_values("started")
    assert list(ran["cpus"]) == sorted(ran["cpus"]) == [2, 2, 4, 4, 16, 16]
    assert (ran["started"].to_numpy()[1:] >= (ran["started"] + ran["wall_time"]).to_numpy()[:-1]).all()
    assert "PPO" in (plan / "report/report.html").read_text()
