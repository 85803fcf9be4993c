"""The tables of the MPI paper beside its studies: published, as published, at equal work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hpcrl.collect.merge import collect
from hpcrl.report.comparison import NOTHING
from hpcrl.report.figures import papers
from hpcrl.report.figures.papers.data import PaperTable
from hpcrl.report.figures.papers.mpi_table import STUDIES
from hpcrl.report.write import read_cells, write_report
from hpcrl.spec.library import Library
from tests.builders import cells_of, dqn_study, planned, write_record
from tests.collect.gathering import no_slurm

# Seconds of training without and with evaluations, of seeds 1 and 2: 5 % less and more.
PUBLISHED = {"sequential": (40.0, 1.0), "pairwise": (20.0, 1.0), "collective": (10.0, 1.0)}
EQUAL = {"sequential": (20.0, 10.0), "collective": (8.0, 2.0), "asynchronous": (4.0, 1.0)}
ACTORS = {"sequential": {}, "pairwise": {}, "collective": {"actors": 4}, "asynchronous": {"actors": 2}}


def dataset(tmp_path: Path, **studies: dict[str, tuple[float, float]]) -> Path:
    """Write a dataset of these studies, in which the topologies take so many seconds."""
    plans = []
    for name, times in studies.items():
        own = name.replace("_", "-")
        topologies = [{"topology": topology, **ACTORS[topology]} for topology in times]
        axes = {"framework": ["numpy"], "topology": topologies}
        study = dqn_study(name=own, paper="mpi-deep-q-learning", seeds=2, axes=axes)
        study["resources"] = {"overcommit": True, "memory": "1G"}
        plan = planned(tmp_path / own, study)
        plans.append(plan)
        for cell in cells_of(plan):
            training, evaluating = times[cell["config"]["topology"]]
            factor = 0.95 if cell["config"]["seed"] == 1 else 1 / 0.95
            facts: dict[str, Any] = {"training_time": factor * training, "evaluation_time": factor * evaluating}
            write_record(plan, cell, wall_time=100.0, steps=1000, final_score=200.0, **facts)
    collect(plans, tmp_path / "d", no_slurm())
    return tmp_path / "d"


def lines(found: PaperTable | None) -> dict[tuple[str, str], dict[str, str]]:
    assert found is not None
    frame = pd.DataFrame(found.rows, columns=found.heads)
    return {(row["environment"], row["topology"]): row for row in frame.to_dict("records")}


def value(text: str) -> float:
    return float(text.partition(" ")[0])


def test_published_and_measured_values_stand_in_one_line(tmp_path: Path) -> None:
    made = dataset(tmp_path, mpi_dqn_published=PUBLISHED, mpi_dqn=EQUAL, mpi_dqn_latency=EQUAL)
    found = papers.table("mpi-deep-q-learning", read_cells(made, None))
    of = lines(found)
    four = of["CartPole", "collective, 4 actors"]
    assert (four["published: time (s)"], four["published: speed-up"]) == ("77.5", "1.43")
    # The time of training where nothing is evaluated before the end; with evaluations at equal work.
    assert value(four["as published: time (s)"]) == pytest.approx(10)
    assert value(four["as published: speed-up"]) == pytest.approx(4)
    assert value(four["at equal work: time (s)"]) == pytest.approx(10)
    assert value(four["at equal work: speed-up"]) == pytest.approx(3)
    assert value(four["at equal work: score"]) == pytest.approx(200)
    pair = of["CartPole", "two processes, pairwise"]
    assert (pair["published: speed-up"], value(pair["as published: speed-up"])) == ("1.51", pytest.approx(2))
    assert pair["at equal work: time (s)"] == NOTHING
    apart = of["CartPole", "asynchronous, 2 actors"]
    assert apart["published: time (s)"] == NOTHING and value(apart["at equal work: speed-up"]) == pytest.approx(6)
    # What was not run here has its published value alone.
    assert of["LunarLander", "collective, 4 actors"]["published: speed-up"] == "4.94"
    assert [topology for environment, topology in of if environment == "box slider"] == [
        "one process",
        "collective, 4 actors",
    ]


def test_it_is_on_the_page_once_and_in_a_file(tmp_path: Path) -> None:
    made = dataset(tmp_path, mpi_dqn_published=PUBLISHED, mpi_dqn=EQUAL)
    page = write_report(made, None, tmp_path / "report", formats=()).html.read_text()
    assert page.count("Published, as published, at equal work</h4>") == 1
    table = pd.read_csv(tmp_path / "report/paper.csv")
    assert set(table["environment"]) == set(STUDIES)


def test_two_clusters_have_lines_of_their_own(tmp_path: Path) -> None:
    rows = read_cells(dataset(tmp_path, mpi_dqn=EQUAL), None)
    there = rows.assign(cluster="sol", training_time=2 * rows["training_time"])
    found = papers.table("mpi-deep-q-learning", pd.concat([rows, there], ignore_index=True))
    assert found is not None and found.heads[0] == "runs"
    assert len({line[0] for line in found.rows}) == 2


def test_without_a_run_there_is_no_table(tmp_path: Path) -> None:
    rows = read_cells(dataset(tmp_path, mpi_dqn_latency=EQUAL), None)
    assert papers.table("mpi-deep-q-learning", rows) is None
    assert papers.table("sol-dqn-frameworks", rows) is None


def test_its_studies_are_those_of_the_paper() -> None:
    for studies in STUDIES.values():
        for name in studies:
            assert Library().study(name).paper == "mpi-deep-q-learning"
