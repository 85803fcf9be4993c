"""The view ``runs``: what completed, one row for each cell, in a dataset of several plans."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hpcrl
from hpcrl.collect.merge import collect
from hpcrl.formats.runs import ADDED
from tests.builders import cells_of, dqn_study, planned, write_record
from tests.collect.gathering import no_slurm
from tests.conftest import Shown


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Collect three seeds, of which one failed, and the same cells planned once more under another title."""
    plans = [planned(tmp_path / name, dqn_study(seeds=3, title=name)) for name in ("first", "second")]
    for plan, time in zip(plans, (10.0, 20.0), strict=True):
        for number, cell in enumerate(cells_of(plan)):
            outcome = "failed" if number == 2 else "completed"
            write_record(plan, cell, training_time=time + number, goal_time=5.0, outcome=outcome)
    collect(plans, tmp_path / "d", no_slurm())
    return tmp_path / "d"


def test_a_cell_is_one_run_in_whatever_plan_and_failures_are_none(dataset: Path) -> None:
    cells, runs = hpcrl.load(dataset), hpcrl.load(dataset, "runs")
    assert (len(cells), len(runs)) == (6, 2)
    assert list(runs["repeats"]) == [2, 2]
    assert runs["cell"].is_unique
    assert set(cells.columns) - set(runs.columns) == {"config", "latest"}
    assert set(ADDED) <= set(runs.columns)
    dictionary = (Path(__file__).parents[2] / "docs/data-dictionary.md").read_text()
    for name, (unit, meaning) in ADDED.items():
        assert f"| `{name}` | {unit} | {meaning} |" in dictionary


def test_every_axis_is_a_column(tmp_path: Path) -> None:
    axes: dict[str, Any] = {"learning_rate": [0.1, 0.2], "records": ["many"]}
    study = dqn_study(seeds=1)
    study["axes"] |= axes
    study["workload"]["env"] = {"RECORDS": "{records}"}
    plan = planned(tmp_path / "p", study)
    for cell in cells_of(plan):
        write_record(plan, cell)
    collect([plan], tmp_path / "d", no_slurm())
    runs = hpcrl.load(tmp_path / "d", "runs")
    assert sorted(runs["learning_rate"]) == [0.1, 0.2]
    assert list(runs["axis_records"]) == ["many", "many"]
    assert list(runs["framework"]) == ["numpy", "numpy"]


def test_runs_can_be_asked_in_sql_and_the_guide_s_example_works(hpcrl: Callable[..., Shown], dataset: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs/user-guide.md").read_text()
    sql = guide.partition('hpcrl query "')[2].partition('"')[0]
    assert "FROM runs" in sql
    shown = hpcrl("query", sql, "--dataset", dataset, "--json")
    assert shown.code == 0, shown.err
    (row,) = json.loads(shown.out)
    assert row["seeds"] == 2
