"""What the report says of a learner and actors, from a dataset with known times of each rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import hpcrl
from hpcrl.collect.merge import collect
from hpcrl.report.figures import topologies as drawing
from hpcrl.report.figures.drawing import for_paper
from hpcrl.report.topologies import heads_of, roles, rows_of
from hpcrl.report.write import read_cells, write_report
from tests.builders import cells_of, command_study, dqn_study, planned, write_record
from tests.collect.gathering import no_slurm

ALONE = {"setup": 9.0, "env_step": 15.0, "act": 1.0, "replay": 1.0, "update": 3.0, "evaluate": 2.0, "other": 2.0}
LEARNER = {"setup": 5.0, "wait": 6.0, "receive": 0.5, "send": 0.3, "replay": 0.2, "update": 3.0, "evaluate": 2.0}
FIRST = {"setup": 6.0, "env_step": 9.0, "act": 1.0, "send": 0.1, "receive": 0.2, "wait": 1.0}
SECOND = {"setup": 6.0, "env_step": 7.0, "act": 1.0, "replay": 0.2, "send": 0.1, "receive": 0.0, "wait": 3.0}
MESSAGES = json.dumps({"transitions": [600, 500], "blocks": [6, 5], "staleness": {"1": 11}})
PLACES: list[dict[str, object]] = [{"topology": "sequential"}, {"topology": "asynchronous", "actors": 2}]


def dataset(
    tmp_path: Path, places: list[dict[str, object]] = PLACES, resumed_step: int | None = None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the cells and the phases of runs with two seeds and two latencies."""
    axes = {"framework": ["numpy"], "place": places, "step_latency": [0.0, 0.005]}
    study = dqn_study(seeds=2, axes=axes, resources={"overcommit": True, "memory": "1G"})
    plan = planned(tmp_path / "plan", study)
    for cell in cells_of(plan):
        work: dict[str, Any] = {
            "steps": 1100,
            "updates": 220,
            "evaluation_time": 2.0,
            "goal_step": 500,
            "goal_wall_time": 8.0,
        }
        if cell["config"]["topology"] == "sequential":
            write_record(
                plan, cell, phases=ALONE, training_time=22.0, wall_time=40.0, resumed_step=resumed_step, **work
            )
            continue
        write_record(plan, cell, phases=LEARNER, training_time=10.0, wall_time=20.0, messages=MESSAGES, **work)
        for rank, phases in ((1, FIRST), (2, SECOND)):
            write_record(plan, cell, rank=rank, phases=phases)
    collect([plan], tmp_path / "d", no_slurm())
    rows = read_cells(tmp_path / "d", None)
    return rows, hpcrl.load(tmp_path / "d", "phases")


def test_the_shares_of_each_role_are_those_of_its_ranks(tmp_path: Path) -> None:
    found = roles(*dataset(tmp_path))
    # Two latencies, each with its sequential runs
    ranks = [("learner", 1, 2), ("actors", 2, 2)]
    assert [(role.role, role.ranks, role.runs) for role in found] == [*ranks, *ranks, *2 * [("one process", 1, 2)]]
    by_role = {role.role: role for role in found}
    alone, learner, actors = (by_role[name] for name in ("one process", "learner", "actors"))
    # 24 s of training with evaluations, of which two are in no phase that is shown
    assert alone.shares["env_step"] == pytest.approx(100 * 15 / 24)
    assert alone.shares["other"] == pytest.approx(100 * 2 / 24)
    assert learner.shares["wait"] == pytest.approx(50)
    assert learner.shares["update"] == pytest.approx(25)
    assert learner.shares["env_step"] == 0
    assert actors.shares["env_step"] == pytest.approx(100 * (9 + 7) / 24)
    assert actors.shares["wait"] == pytest.approx(100 * (1 + 3) / 24)
    for role in (alone, learner, actors):
        assert sum(role.shares.values()) == pytest.approx(100)


def test_rates_are_those_of_training_with_its_evaluations(tmp_path: Path) -> None:
    by_role = {role.role: role for role in roles(*dataset(tmp_path))}
    alone, learner, actors = (by_role[name] for name in ("one process", "learner", "actors"))
    assert alone.steps is not None and alone.steps.value == pytest.approx(1100 / 24)
    assert alone.updates is not None and alone.updates.value == pytest.approx(220 / 24)
    assert actors.steps is not None and actors.steps.value == pytest.approx(1100 / 12)
    assert learner.updates is not None and learner.updates.value == pytest.approx(220 / 12)
    assert (learner.steps, actors.updates) == (None, None)
    assert alone.goal == learner.goal == pytest.approx(7)  # without the second of set-up


def test_a_run_that_went_on_from_a_checkpoint_has_no_shares(tmp_path: Path) -> None:
    found = roles(*dataset(tmp_path, resumed_step=100))
    assert {role.role for role in found} == {"learner", "actors"}


def test_without_actors_there_is_nothing_to_say(tmp_path: Path) -> None:
    rows, phases = dataset(tmp_path, PLACES[:1])
    assert roles(rows, phases) == []
    assert drawing.figures(rows, rows, phases) == [None, None]


def test_wall_time_stands_against_latency_beside_a_model_of_measured_parts(tmp_path: Path) -> None:
    rows, phases = dataset(tmp_path)
    shares, latencies = drawing.figures(rows, rows, phases)
    assert shares is not None and latencies is not None
    (panel,) = latencies.panels
    assert panel.title == "asynchronous"
    table = panel.values
    assert set(table["runs"]) == {"sequential", "asynchronous, 2 actors"}
    assert set(table["latency of a step (ms)"]) == {0.0, 5.0}
    of = {str(runs): group for runs, group in table.groupby("runs")}
    measured = "training with evaluations (s), geometric mean"
    assert of["sequential"][measured].tolist() == pytest.approx([24, 24])
    actors = of["asynchronous, 2 actors"]
    assert actors[measured].tolist() == pytest.approx([12, 12])
    # 16 s of simulating over two actors are more than the replay and the updates. Messages: the learner's and the mean of the actors', with their packing.
    assert actors["T_sim / actors (s)"].tolist() == pytest.approx([8, 8])
    assert (actors["T_learn (s)"] + actors["T_eval (s)"]).tolist() == pytest.approx([6, 6])
    assert actors["messages (s)"].tolist() == pytest.approx(2 * [0.8 + (0.3 + 0.1 + 0.2) / 2])
    assert actors["model (s)"].tolist() == pytest.approx([8 + 2 + 1.1] * 2)
    assert "max(T_sim / actors, T_learn) + T_eval + messages" in latencies.text
    assert "without waiting" in latencies.text
    for figure in (shares, latencies):
        for_paper(figure)


def test_one_latency_is_no_axis(tmp_path: Path) -> None:
    rows, phases = dataset(tmp_path)
    one = rows[[json.loads(text)["step_latency"] == 0 for text in rows["config"]]]
    assert drawing.figures(one, one, phases)[1] is None


def test_kinds_of_machines_are_compared_each_for_itself(tmp_path: Path) -> None:
    rows, phases = dataset(tmp_path)
    of_actors = rows["config"].str.contains("asynchronous")
    elsewhere = rows.assign(machine=rows["machine"].mask(of_actors, "D, 2 threads"))
    assert drawing.figures(elsewhere, elsewhere, phases)[1] is None  # the speed-up would be that of the CPU
    both = pd.concat(
        [rows, rows.assign(machine="D, 2 threads", training_time=2 * rows["training_time"])], ignore_index=True
    )
    found = drawing.figures(both, both, phases)[1]
    assert found is not None
    assert [panel.title for panel in found.panels] == [f"asynchronous, machine {cpu}, 2 threads" for cpu in ("C", "D")]
    assert [panel.values["seeds"].tolist() for panel in found.panels] == [[2, 2, 2, 2]] * 2


def test_the_same_actors_on_one_node_and_on_two_are_apart(tmp_path: Path) -> None:
    rows, phases = dataset(tmp_path)
    of_actors = rows["config"].str.contains("asynchronous")
    spread = rows[of_actors].assign(nodes=2, training_time=2 * rows.loc[of_actors, "training_time"])
    both = pd.concat([rows, spread], ignore_index=True)
    found = drawing.figures(both, both, phases)[1]
    assert found is not None
    assert [panel.title for panel in found.panels] == ["asynchronous, nodes 1", "asynchronous, nodes 2"]
    assert [panel.values["seeds"].tolist() for panel in found.panels] == [[2, 2, 2, 2]] * 2


def test_the_axes_of_a_command_may_have_any_values(tmp_path: Path) -> None:
    """Its own `actors` and `step_latency` are no learner's."""
    axes = {"actors": ["few", "many"], "step_latency": ["none", "5ms"]}
    plan = planned(tmp_path / "plan", command_study(["./mpi_dqn", "--actors", "{actors}", "{step_latency}"], axes=axes))
    for cell in cells_of(plan):
        write_record(plan, cell, header={"workload": "command"})
    collect([plan], tmp_path / "d", no_slurm())
    page = write_report(tmp_path / "d", None, tmp_path / "report", formats=()).html.read_text()
    assert "4 configurations" in page and "Learner and actors" not in page


def test_the_page_and_a_file_have_the_utilisation(tmp_path: Path) -> None:
    rows, phases = dataset(tmp_path)
    found = roles(rows, phases)
    written = write_report(tmp_path / "d", None, tmp_path / "report", formats=())
    page = written.html.read_text()
    assert "Learner and actors</h3>" in page and "Wall time against the latency of a step" in page
    table = pd.read_csv(tmp_path / "report/roles.csv")
    assert table.loc[table["role"] == "learner", "wait_percent"].tolist() == pytest.approx([50, 50])
    assert [len(row) for row in rows_of(found)] == [len(heads_of(found))] * len(found)
    assert "2 actors" in {row[2] for row in rows_of(found)}
