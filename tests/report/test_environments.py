"""A study of several environments, from its plan to the report: runs in different ones are not compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd

import hpcrl as package
from hpcrl.formats.mlflow import parameters
from tests.builders import cells_of, dqn_study, planned, run_cell
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
