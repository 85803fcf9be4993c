"""Requeued cells: the record of the last attempt begins anew, and has only the rest of times, samples and episodes."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import hpcrl
from hpcrl.collect.merge import collect
from hpcrl.report.curves import By, evaluations, returns, usage
from hpcrl.report.figures.learning import _curves
from hpcrl.report.figures.times import _phases
from hpcrl.report.score import Score
from hpcrl.report.write import read_cells
from tests.builders import cells_of, dqn_study, planned, write_record
from tests.collect.gathering import no_slurm

LEFT_OUT = " Without 1 requeued cell: "


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seeds, of which the last was requeued."""
    directory = tmp_path_factory.mktemp("requeued")
    plan = planned(directory / "p", dqn_study(seeds=3))
    for cell, resumed in zip(cells_of(plan), (None, None, 20), strict=True):
        write_record(
            plan, cell, returns=(90.0,) * 3 if resumed else (10.0,) * 3, evaluations=[(10, 1.0, 5.0), (20, 2.0, 5.0)],
            phases={"act": 90.0 if resumed else 10.0}, resumed_step=resumed,
        )  # fmt: skip
    collect([plan], directory / "d", no_slurm())
    return directory / "d"


@pytest.fixture
def rows(dataset: Path) -> pd.DataFrame:
    cells = read_cells(dataset, None)
    return cells.assign(line=cells["what"])


@pytest.mark.parametrize(("by", "seeds"), [("step", 3), ("time", 2), ("episode", 2)])
def test_only_curves_against_steps_have_them(dataset: Path, rows: pd.DataFrame, by: By, seeds: int) -> None:
    episodes = hpcrl.load(dataset, "episodes")
    assert set(returns(rows, episodes, by)["seeds"]) == {seeds}
    assert set(evaluations(rows, episodes, by)["seeds"]) == {seeds}
    figure = _curves(rows, episodes, by, None, Score())
    assert figure is not None
    assert (LEFT_OUT in figure.text) == (by != "step")


def test_usage_over_time_and_phases_are_of_whole_runs(dataset: Path, rows: pd.DataFrame) -> None:
    assert set(usage(rows, hpcrl.load(dataset, "samples"), "memory")["seeds"]) == {2}
    figure, _ = _phases(rows, hpcrl.load(dataset, "phases"))
    assert figure is not None
    assert figure.panels[0].values["acting"].tolist() == [10.0]
    assert LEFT_OUT in figure.text


def test_the_view_of_runs_lacks_what_is_not_known_of_the_whole_run(dataset: Path) -> None:
    runs = hpcrl.load(dataset, "runs").set_index("seed")
    for column in ("wall_time", "cpu_seconds"):
        assert runs[column].notna().to_dict() == {1: True, 2: True, 3: False}, column
    assert runs["training_time"].notna().all()
