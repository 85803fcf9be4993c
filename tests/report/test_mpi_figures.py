"""The speed-ups of the MPI study: those of the paper as printed, and those of a dataset with known times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

import hpcrl
from hpcrl.collect.merge import collect
from hpcrl.report.figures import papers
from hpcrl.report.figures.drawing import for_paper
from hpcrl.report.figures.papers.data import PaperData
from hpcrl.report.figures.papers.mpi_deep_q_learning import PRINTED
from hpcrl.report.write import read_cells
from tests.builders import cells_of, dqn_study, planned, write_record
from tests.collect.gathering import no_slurm

SECONDS = {"sequential": 20.0, "collective": 6.0, "asynchronous": 5.0}
EVALUATING = 2.0


def data_of(tmp_path: Path, topologies: list[dict[str, object]]) -> PaperData:
    study = dqn_study(
        paper="mpi-deep-q-learning",
        seeds=3,
        axes={"framework": ["numpy"], "place": topologies, "step_latency": [0.0, 0.005]},
    )
    study["resources"] = {"overcommit": True, "memory": "1G"}
    plan = planned(tmp_path / "plan", study)
    for number, cell in enumerate(cells_of(plan)):
        time = SECONDS[cell["config"]["topology"]]
        phases = {"env_step": 15.0, "act": 1.0, "update": 4.0}
        times = {"training_time": time, "evaluation_time": EVALUATING, "wall_time": time + EVALUATING + 1}
        write_record(plan, cell, node=f"n{number}", steps=1000, phases=phases, **times)
    collect([plan], tmp_path / "d", no_slurm())
    rows = read_cells(tmp_path / "d", None).assign(shared=False)
    tables = (hpcrl.load(tmp_path / "d", name) for name in ("episodes", "samples"))
    return PaperData(rows, *tables, None, hpcrl.load(tmp_path / "d", "phases"))


def test_speed_ups_are_those_of_the_dataset_and_of_the_paper(tmp_path: Path) -> None:
    places = [{"topology": "sequential"}, *({"topology": name, "actors": 4} for name in ("collective", "asynchronous"))]
    data = data_of(tmp_path, places)
    (figure,) = papers.figures("mpi-deep-q-learning", data).drawn
    published, *measured = figure.panels
    shown = published.values.set_index(["configuration", "actors"])["speed-up, median"]
    assert shown["LunarLander", 4] == pytest.approx(4.938, abs=1e-3)
    assert shown["CartPole", 3] == pytest.approx(1.564, abs=1e-3)
    assert shown["box slider", 4] == pytest.approx(1.633, abs=1e-3)
    assert shown["CartPole", 1] == pytest.approx(1.407, abs=1e-3)
    assert shown["CartPole, two processes", 1] == pytest.approx(1.506, abs=1e-3)
    assert shown["LunarLander, two processes", 1] == pytest.approx(1.354, abs=1e-3)
    assert [panel.title for panel in measured] == ["Measured, 0 ms per step", "Measured, 5 ms per step"]
    for panel in measured:
        found = panel.values.set_index("configuration")["speed-up, median"]
        # The actors explored during the evaluations, too: without these the learner's times would be too short.
        assert found["collective"] == pytest.approx(22 / 8)
        assert found["asynchronous"] == pytest.approx(22 / 7)
        # 16 s of simulating over four actors, or 4 s of learning and 2 s of evaluating
        assert found["model"] == pytest.approx(22 / 6)
    assert "at most 3.83" in figure.text and "actors go on exploring while the learner evaluates" in figure.text
    assert "450 trainings instead of 500" in figure.text and "by trainings it is 1.41" in figure.text
    by_trainings = PRINTED["CartPole"]["sequential", 1] / (PRINTED["CartPole"]["collective", 3] * 500 / 450)
    assert by_trainings == pytest.approx(1.41, abs=5e-3)
    for_paper(figure)
    # The cores are the same for all; what differs is the topology, which has the colours.
    assert set(data.rows["where"]) == {"1 core"}
    assert set(data.rows["colour"]) == {"sequential", "collective", "asynchronous"}
    assert "NumPy eager asynchronous actors 4 step_latency 0" in set(data.rows["what"])


def test_runs_of_a_fixed_number_of_episodes_are_compared_by_time_and_by_step(tmp_path: Path) -> None:
    """The run with actors takes a quarter of the time, but for half of the steps: a step takes half of the time."""
    options = [
        {"topology": "sequential", "total_episodes": 500, "updates": 1, "train_interval": 1},
        {"topology": "collective", "actors": 4, "total_episodes": 500, "updates": 100, "train_interval": 100},
    ]
    study = dqn_study(paper="mpi-deep-q-learning", axes={"framework": ["numpy"], "topology": options})
    study["workload"]["hyperparameters"]["train_unit"] = "episodes"
    study["resources"] = {"overcommit": True, "memory": "1G"}
    plan = planned(tmp_path / "plan", study)
    for cell in cells_of(plan):
        time, steps = (40.0, 10_000) if cell["config"]["topology"] == "sequential" else (10.0, 5_000)
        write_record(plan, cell, training_time=time, wall_time=time + 1, steps=steps)
    collect([plan], tmp_path / "d", no_slurm())
    rows = read_cells(tmp_path / "d", None).assign(shared=False)
    assert set(rows["what"]) == {"NumPy eager sequential", "NumPy eager collective actors 4"}
    data = PaperData(rows, *(hpcrl.load(tmp_path / "d", name) for name in ("episodes", "samples")))
    (figure,) = papers.figures("mpi-deep-q-learning", data).drawn
    titles = ["Published, fixed number of episodes", "Run again as published", "The same runs, per environment step"]
    assert [panel.title for panel in figure.panels] == titles
    found = [panel.values.set_index(["configuration", "actors"])["speed-up, median"] for panel in figure.panels[1:]]
    assert [each["collective", 4] for each in found] == pytest.approx([4.0, 2.0])
    apart = rows[rows["config"].str.contains("collective")].assign(nodes=2, training_time=20.0)
    both = replace(data, rows=pd.concat([rows, apart], ignore_index=True))
    (figure,) = papers.figures("mpi-deep-q-learning", both).drawn
    assert [panel.title for panel in figure.panels[1::2]] == [
        f"{titles[1]}, {where}" for where in ("1 node", "2 nodes")
    ]
    found = [panel.values["speed-up, median"].tolist() for panel in figure.panels[1::2]]
    assert found == [pytest.approx([4.0]), pytest.approx([2.0])]


def test_each_kind_of_machine_is_compared_with_its_own_sequential_runs(tmp_path: Path) -> None:
    """On the other CPU all takes three times as long, and one of its topologies was not run."""
    places = [{"topology": "sequential"}, *({"topology": name, "actors": 4} for name in ("collective", "asynchronous"))]
    data = data_of(tmp_path, places)
    there = data.rows[~data.rows["config"].str.contains("collective")].assign(machine="D, 2 threads")
    there = there.assign(**{name: 3 * there[name] for name in ("training_time", "evaluation_time")})
    both = replace(data, rows=pd.concat([data.rows, there], ignore_index=True))
    (figure,) = papers.figures("mpi-deep-q-learning", both).drawn
    titles = [
        f"Measured, {latency} ms per step, machine {name}, 2 threads" for latency in (0, 5) for name in ("C", "D")
    ]
    assert [panel.title for panel in figure.panels[1:]] == titles
    for panel in figure.panels[1:]:
        found = panel.values.set_index("configuration")
        assert found.loc["asynchronous", "speed-up, median"] == pytest.approx(22 / 7)
        assert found.loc["asynchronous", "seeds"] == 3
        assert ("collective" in found.index) == ("machine C" in panel.title)


def test_without_a_sequential_run_there_is_nothing_to_compare(tmp_path: Path) -> None:
    found = papers.figures("mpi-deep-q-learning", data_of(tmp_path, [{"topology": "collective", "actors": 4}]))
    assert found.drawn == []
    assert found.empty == [
        ("Tables 1 to 3: speed-up by actors", "no run with actors beside a sequential one that completed")
    ]
