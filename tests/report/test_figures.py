"""Figures that only some datasets have: of GPUs, and of several clusters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import hpcrl
from hpcrl.collect.merge import collect
from hpcrl.report.figures import figures
from hpcrl.report.groups import with_groups
from tests.builders import cells_of, dqn_study, planned, write_record
from tests.collect.gathering import no_slurm


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    plans = [planned(tmp_path / name, dqn_study(seeds=2), name) for name in ("workstation", "cirrus")]
    for plan in plans:
        for cell in cells_of(plan):
            write_record(plan, cell, steps=2000, training_time=10.0)
    collect(plans, tmp_path / "d", no_slurm())
    return tmp_path / "d"


def charts(dataset: Path, rows: pd.DataFrame) -> dict[str, dict[str, Any]]:
    tables = {each: hpcrl.load(dataset, each) for each in ("episodes", "samples", "phases")}
    return {each.name: each.chart.to_dict() for each in figures(rows, **tables, study={})}


def drawn(dataset: Path, rows: pd.DataFrame, name: str) -> list[dict[str, Any]]:
    """Return the data of a figure, nothing if it is not drawn."""
    chart = charts(dataset, rows).get(name, {"datasets": {}})
    return [row for data in chart["datasets"].values() for row in data]


def test_speed_in_terms_of_the_machine_needs_two_calibrated_clusters(dataset: Path) -> None:
    rows = with_groups(hpcrl.load(dataset))
    assert not drawn(dataset, rows, "normalised-speed")
    speeds = rows["cluster"].map({"workstation": 10_000.0, "cirrus": 40_000.0})
    found = drawn(dataset, rows.assign(calibration_environment=speeds), "normalised-speed")
    assert {each["line"].rpartition(" ")[2]: each["value"] for each in found} == {"workstation": 0.02, "cirrus": 0.005}
    one = rows.assign(calibration_environment=speeds.where(rows["cluster"] == "cirrus"))
    assert not drawn(dataset, one, "normalised-speed")


def test_energy_is_drawn_where_a_counter_was_read(dataset: Path) -> None:
    rows = with_groups(hpcrl.load(dataset))
    assert not drawn(dataset, rows, "energy")
    read = rows.assign(energy=rows["seed"].map({1: 3000.0, 2: 5000.0}))
    found = drawn(dataset, read, "energy")
    # Joules of a run, and of 1,000 of its 2,000 steps.
    assert sorted({each["value"] for each in found}) == [1500, 2500, 3000, 5000]
    # A command need not report steps.
    assert sorted({each["value"] for each in drawn(dataset, read.assign(steps=np.nan), "energy")}) == [3000, 5000]


def test_the_axis_of_scores_holds_negative_returns(dataset: Path) -> None:
    rows = with_groups(hpcrl.load(dataset))
    name = next(each for each in charts(dataset, rows) if "score" in each)
    for scores, domain in (({1: -200.0, 2: -100.0}, [-210, 0]), ({1: 50.0, 2: 100.0}, [0, 105])):
        chart = charts(dataset, rows.assign(final_score=rows["seed"].map(scores)))[name]
        domains = [layer["encoding"]["x"].get("scale", {}).get("domain") for layer in chart["layer"]]
        assert domain in domains
