from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import pytest
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

from hpcrl.collect.merge import collect
from hpcrl.formats.plan import read_plan
from hpcrl.formats.tables import load_table, read_index
from hpcrl.report.figures import search as figures
from hpcrl.report.search import Search, search_of
from hpcrl.report.write import make_sections, read_cells
from hpcrl.slurm.client import Slurm
from hpcrl.spec.library import Library
from tests.builders import cells_of, command_study, dqn_study, planned, write_record
from tests.conftest import Shown

SPACE: dict[str, Any] = {"learning_rate": {"low": 1e-4, "high": 1e-1, "log": True}, "double": [True, False]}
RATES = [0.0001, 0.001, 0.002, 0.01, 0.05, 0.1, 0.0005, 0.02]


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Eight trials, of which the last was pruned, and the best one (0.01, trial 4) on two seeds."""
    plan = planned(tmp_path / "p", dqn_study(search={"trials": 8, "space": SPACE}, seeds=[1, 2]))
    assert len(read_plan(plan).cell_jobs()) == 2
    for number, cell in enumerate(cells_of(plan)):
        trial = number < 8
        rate = RATES[number] if trial else 0.01
        drawn = {"learning_rate": rate, "double": number % 2 == 0}
        score = 100 - 1000 * abs(rate - 0.01) if trial else 42.0
        outcome = "pruned" if number == 7 else "completed"
        write_record(plan, cell, outcome=outcome, header={"drawn": drawn}, final_score=None if number == 7 else score)
    collect([plan], tmp_path / "d", Slurm())
    return tmp_path / "d"


def searched(dataset: Path) -> Search:
    (study,) = read_index(dataset)["studies"].values()
    found = search_of(load_table(dataset, "cells"), load_table(dataset, "episodes"), study)
    assert found is not None
    return found


def test_only_the_runs_of_the_best_trial_on_other_seeds_are_compared(dataset: Path) -> None:
    rows = read_cells(dataset, None)
    assert sorted(rows["seed"]) == [1, 2]
    assert set(rows["final_score"]) == {42.0}
    (section,) = make_sections(dataset, rows, Library())
    assert [line.what for line in section.lines] == ["NumPy eager best of 8 trials"]
    (said,) = section.search
    assert said.startswith("NumPy eager: 8 trials (7 completed, 1 pruned; sampler tpe, pruner none).")
    assert "trial 4 with double false, learning rate 0.01. Its final score was 100" in said


def test_importance_is_that_of_optuna_for_the_same_trials(dataset: Path) -> None:
    found = searched(dataset)
    study = optuna.create_study(direction="maximize")
    kinds = {
        "learning_rate": optuna.distributions.FloatDistribution(1e-4, 1e-1, log=True),
        "double": optuna.distributions.CategoricalDistribution([False, True]),
    }
    for number, rate in enumerate(RATES[:7]):
        params = {"learning_rate": rate, "double": number % 2 == 0}
        value = 100 - 1000 * abs(rate - 0.01)
        study.add_trial(optuna.create_trial(params=params, distributions=kinds, value=value))
    wanted = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator(), params=["learning_rate", "double"])
    assert dict(zip(found.importance["parameter"], found.importance["importance"], strict=True)) == pytest.approx(
        wanted
    )


def test_every_figure_has_the_values_of_the_trials(dataset: Path) -> None:
    found = searched(dataset)
    drawn = {figure.name: figure for figure in figures.figures(found)}
    assert set(drawn) >= {"search-history", "search-parameters", "search-parallel", "search-map", "search-importance"}
    (history,) = drawn["search-history"].panels
    assert history.values["trial"].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert history.values["best so far"].tolist() == pytest.approx([90.1, 91, 92, 100, 100, 100, 100])


def test_the_three_most_important_parameters_are_drawn_in_pairs(dataset: Path) -> None:
    found = searched(dataset)
    trials = found.trials.assign(batch_size=range(len(found.trials)), updates=range(len(found.trials)))
    (name,) = trials["search"].unique()
    shares = {"double": 0.1, "updates": 0.4, "learning_rate": 0.3, "batch_size": 0.2}
    importance = pd.DataFrame({"search": name, "parameter": list(shares), "importance": list(shares.values())})
    more = replace(found, trials=trials, parameters=list(shares), importance=importance)
    drawn = {figure.name: figure for figure in figures.figures(more)}
    assert [panel.title for panel in drawn["search-map"].panels] == [
        "updates, learning rate", "updates, batch size", "learning rate, batch size",
    ]  # fmt: skip


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("trains", [True, False])
def test_trials_without_a_best_run_are_no_result(
    tmp_path: Path, others: int, trains: bool, hpcrl: Callable[..., Shown]
) -> None:
    """Also beside another study, and in a site."""
    search = {"trials": 2, "space": SPACE}
    command = command_study(["true", "{learning_rate}", "{double}"], name="short", axes={}, search=search)
    plans = [planned(tmp_path / "p", dqn_study(search=search) if trains else command)]
    for number, cell in enumerate(cells_of(plans[0])[:2]):
        drawn = {"learning_rate": 0.1 * (number + 1), "double": True}
        entries = [] if trains else [{"time": 1.0, "step": None, "values": {"return": float(number)}}]
        write_record(plans[0], cell, header={"drawn": drawn}, final_score=float(number), reported=entries)
    if others:
        plans.append(planned(tmp_path / "q", dqn_study(name="other")))
        write_record(plans[1], cells_of(plans[1])[0])
    collect(plans, tmp_path / "d", Slurm())
    rows = read_cells(tmp_path / "d", None)
    assert set(rows["study"]) == ({"other"} if others else set())
    shown = hpcrl("report", tmp_path / "d", "-o", tmp_path / "r", "--figures", "none")
    assert shown.code == 0, shown.err
    page = (tmp_path / "r/report.html").read_text()
    assert "Its best configuration has not been run on other seeds yet." in page
    assert "2 trials (2 completed; sampler tpe, pruner none)" in page
    assert (tmp_path / "r/summary.csv").read_text().count("\n") == 1 + others
    shown = hpcrl("report", tmp_path / "d", "--study", "short", "-o", tmp_path / "s", "--figures", "none")
    assert (shown.code, "study-other" in (tmp_path / "s/report.html").read_text()) == (0, False), shown.err
    assert hpcrl("report", tmp_path / "d", "--site", tmp_path / "site").code == 0
    assert "no result" in (tmp_path / "site/short/index.html").read_text()


def test_two_searches_under_one_name_are_two_everywhere(tmp_path: Path) -> None:
    """The second one has another space. Both have their trials, and the runs of their best ones, in one dataset."""
    spaces: list[dict[str, Any]] = [SPACE, {"learning_rate": SPACE["learning_rate"], "gamma": [0.9, 0.99]}]
    plans = []
    for number, space in enumerate(spaces):
        plan = planned(tmp_path / f"p{number}", dqn_study(search={"trials": 2, "space": space}, seeds=[1, 2]))
        for place, cell in enumerate(cells_of(plan)):
            drawn = {"learning_rate": 0.01 * (place + 1), list(space)[1]: space[list(space)[1]][0]}
            header = {"drawn": drawn, "search": f"journal{number}", "started": 100.0 * (2 - number) + place}
            score = 10.0 + number if cell["config"]["search"] == "best" else float(place)
            write_record(plan, cell, header=header, final_score=score)
        plans.append(plan)
    collect(plans[:1], tmp_path / "d", Slurm())
    collect(plans[1:], tmp_path / "d", Slurm())
    (section,) = make_sections(tmp_path / "d", read_cells(tmp_path / "d", None), Library())
    # The second plan's began first.
    assert [(line.what, line.cells, line.final and line.final.value) for line in section.lines] == [
        ("NumPy eager best of 2 trials, search 1", 2, 11.0),
        ("NumPy eager best of 2 trials, search 2", 2, 10.0),
    ]
    first, second = section.search
    assert first.startswith("NumPy eager search 1: 2 trials") and "gamma" in first and "double" not in first
    assert second.startswith("NumPy eager search 2: 2 trials") and "double" in second and "gamma" not in second


def test_a_search_that_went_on_with_more_trials_is_one(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study(search={"trials": 3, "space": SPACE}, seeds=[1]))
    for place, cell in enumerate(cells_of(plan)):
        header = {"drawn": {"learning_rate": 0.01, "double": True}, "search": "a", "started": float(place)}
        write_record(plan, cell, header=header)
    collect([plan], tmp_path / "d", Slurm())
    (section,) = make_sections(tmp_path / "d", read_cells(tmp_path / "d", None), Library())
    assert [line.what for line in section.lines] == ["NumPy eager best of 3 trials"]
    assert section.search[0].startswith("NumPy eager: 3 trials")


def test_the_objective_of_a_command_is_what_it_reported_and_not_its_score(tmp_path: Path) -> None:
    space = {"x": {"low": 0.0, "high": 10.0}}
    study = command_study(
        ["true", "{x}"],
        axes={},
        score="accuracy",
        search={"trials": 2, "space": space, "directions": {"loss": "minimize"}},
    )
    plan = planned(tmp_path / "p", study)
    for cell, loss in zip(cells_of(plan), (0.5, 0.25), strict=False):
        entries = [{"time": 1.0, "step": None, "values": {"loss": 9.0, "accuracy": 1.0}}]
        entries.append({"time": 2.0, "step": None, "values": {"loss": loss}})
        write_record(plan, cell, header={"drawn": {"x": loss}}, reported=entries)
    collect([plan], tmp_path / "d", Slurm())
    found = searched(tmp_path / "d")
    assert found.trials["value"].tolist() == [0.5, 0.25]


def test_an_earlier_draw_of_a_trial_has_no_part_in_its_curve(tmp_path: Path) -> None:
    """The first attempt was killed; the second drew other values, was preempted, and went on in the third."""
    plan = planned(tmp_path / "p", dqn_study(search={"trials": 1, "space": SPACE}))
    cell = cells_of(plan)[0]
    for attempt, rate, outcome, evaluations in (
        (1, 0.1, "failed", [(1000, 5.0)]),
        (2, 0.01, "preempted", [(1000, 20.0), (2000, 30.0)]),
        (3, 0.01, "completed", [(2000, 30.0), (3000, 40.0)]),
    ):
        rows = [(step, float(step), value) for step, value in evaluations]
        drawn = {"learning_rate": rate, "double": True}
        header = {"drawn": drawn, "started": 100.0 + attempt}
        write_record(plan, cell, f"byhand-{attempt}", outcome=outcome, header=header, evaluations=rows)
    collect([plan], tmp_path / "d", Slurm())
    found = searched(tmp_path / "d")
    assert found.evaluations["return"].tolist() == [20, 30, 40]


def test_searches_that_differ_in_their_resources_are_two(tmp_path: Path) -> None:
    plan = planned(
        tmp_path / "p",
        dqn_study(search={"trials": 1, "space": SPACE}, axes={"framework": ["numpy"], "cpus": [1, 2]}),
        "sol",
    )
    for cell in cells_of(plan):
        write_record(plan, cell, header={"drawn": {"learning_rate": 0.1, "double": True}}, final_score=1.0)
    collect([plan], tmp_path / "d", Slurm())
    assert sorted(searched(tmp_path / "d").trials["search"]) == ["NumPy eager 1 core", "NumPy eager 2 cores"]
