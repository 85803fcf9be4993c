"""Studies of several environments, and of algorithms that train for different numbers of steps: such runs are not compared."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

import hpcrl as package
from hpcrl.collect.merge import collect
from hpcrl.formats.mlflow import parameters
from hpcrl.report.findings import findings
from hpcrl.report.groups import with_groups
from hpcrl.report.summary import sentences
from tests.builders import cells_of, dqn_study, planned, run_cell, write_record
from tests.collect.gathering import no_slurm
from tests.conftest import Shown


def test_a_study_of_two_environments(tmp_path: Path, hpcrl: Callable[..., Shown]) -> None:
    doors = {"environment": "Doors-v0", "same_column": True}
    study = dqn_study(axes={"framework": ["numpy"], "environment": ["CartPole-v1", doors], "gamma": [0.9, 0.99]})
    del study["workload"]["environment"]
    plan = planned(tmp_path / "p", study)
    cells = cells_of(plan)
    assert len({cell["id"] for cell in cells}) == 4
    for cell in cells:
        done = run_cell(plan, cell["id"])
        assert done.returncode == 0, done.stderr
        agent = package.load_agent(plan / "agents" / f"{cell['id']}-last.npz")
        assert agent.environment == cell["config"]["environment"]
        assert agent.options == ({"same_column": True} if agent.environment == "Doors-v0" else {})
    hpcrl("collect", plan, "-o", tmp_path / "d")
    runs = package.load(tmp_path / "d", "runs")
    assert set(runs["axis_environment"]) == {"CartPole-v1", "Doors-v0"}
    shown = hpcrl("report", tmp_path / "d", "-o", tmp_path / "r")
    assert shown.code == 0, shown.err
    summary = pd.read_csv(tmp_path / "r" / "summary.csv")
    places = {(row.configuration.removesuffix(" same_column true"), row.resources) for row in summary.itertuples()}
    names = ("NumPy eager gamma 0.9", "NumPy eager gamma 0.99")
    assert places == {(name, f"{where}, 1 core") for name in names for where in ("CartPole-v1", "Doors-v0")}


def test_the_environment_is_a_parameter_beside_the_software() -> None:
    columns, config = {"environment": "numpy-cpu-1", "cpus": 2.0}, {"environment": "Doors-v0", "cpus": 2}
    told = parameters(columns, config)
    assert told == {"environment": "numpy-cpu-1", "axis_environment": "Doors-v0", "cpus": "2.0"}


@pytest.mark.parametrize("steps", [2048, 4096])
def test_algorithms_are_compared_if_they_train_for_as_many_steps(tmp_path: Path, steps: int) -> None:
    algorithms = [{"algorithm": "dqn", "total_steps": 2048}, {"algorithm": "ppo", "total_steps": steps}]
    study = dqn_study(axes={"framework": ["numpy"], "execution": ["eager"], "algorithm": algorithms}, seeds=5)
    study["workload"] = {"environment": "CartPole-v1", "hyperparameters": {"evaluation_interval": 2048}}
    plan, draw = planned(tmp_path / "p", study), itertools.count()
    for cell in cells_of(plan):
        name = cell["config"]["algorithm"]
        spent = (10.0 if name == "dqn" else 30.0) + 0.01 * (next(draw) % 5)
        write_record(plan, cell, header={"workload": name}, training_time=spent, wall_time=spent)
    collect([plan], tmp_path / "d", no_slurm())
    rows = with_groups(package.load(tmp_path / "d"))
    told = findings(rows)
    if steps == 2048:
        assert "slowest is PPO NumPy eager" in told[0]
    else:
        assert not [text for text in told if "slowest" in text], told
        assert len([text for text in told if text.startswith("DQN: DQN NumPy eager trains in 10.0 s")]) == 1, told
        assert len([text for text in told if text.startswith("PPO: PPO NumPy eager trains in 30.0 s")]) == 1
    whole = [text for text in sentences(rows) if "times as long" in text]
    assert len(whole) == (1 if steps == 2048 else 0)
