"""Figure 11 of the Doors study: the published times, and those of a dataset with known times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import hpcrl
from hpcrl.collect.merge import collect
from hpcrl.formats.facts import BEST_POSSIBLE
from hpcrl.report.figures import papers
from hpcrl.report.figures.drawing import for_paper
from hpcrl.report.figures.papers.data import PaperData
from hpcrl.report.write import read_cells
from tests.builders import cells_of, dqn_study, planned, write_record
from tests.collect.gathering import no_slurm

# Seconds of 512 steps, by the way of stepping.
SECONDS = {
    "sync": 4.0,
    "pipes": 2.0,
    "pipes each": 8.0,
    "processes each": 6.0,
    "arrays": 0.5,
    "compiled": 0.25,
    "fused": 0.125,
}


def data_of(tmp_path: Path, environments: list[int]) -> PaperData:
    ways: list[dict[str, Any]] = [
        *({"framework": "numpy", "stepping": name} for name in ("sync", "pipes", "arrays")),
        *({"framework": "numpy", "stepping": name, "workers": "environments"} for name in ("pipes", "processes")),
        {"framework": "jax", "execution": "lazy", "stepping": "compiled"},
        {"framework": "jax", "execution": "fused"},
    ]
    study = dqn_study(
        paper="doors-jax-environments", seeds=3, axes={"stepping": ways, "environments": environments}, goal=None
    )
    study["workload"] = {"algorithm": "random_policy", "environment": "Doors-v0"}
    plan = planned(tmp_path / "plan", study)
    for cell in cells_of(plan):
        config = cell["config"]
        way = "fused" if config["execution"] == "fused" else config["stepping"]
        way += " each" if "workers" in config else ""
        phases = {"act": 100.0, "fused" if way == "fused" else "env_step": SECONDS[way]}
        header = {"workload": "random_policy"}
        write_record(plan, cell, phases=phases, steps=512 * config["environments"], header=header)
    collect([plan], tmp_path / "d", no_slurm())
    rows = read_cells(tmp_path / "d", None).assign(shared=False)
    tables = (hpcrl.load(tmp_path / "d", name) for name in ("episodes", "samples"))
    return PaperData(rows, *tables, None, hpcrl.load(tmp_path / "d", "phases"))


def test_times_of_a_step_are_those_of_the_dataset_and_of_the_post(tmp_path: Path) -> None:
    (figure,) = papers.figures("doors-jax-environments", data_of(tmp_path, [1, 481, 4096])).drawn
    published, measured, each = (panel.values.set_index(["configuration", "environments"]) for panel in figure.panels)
    assert [panel.title for panel in figure.panels] == ["Published", "Measured", "Measured, per environment"]
    of_step, of_one = "time of a step (ms), median", "time of a step (µs), median"
    assert published.loc[("one after another", 481), of_step] == pytest.approx(1e3 * 2.758 / 512)
    assert published.loc[("a process each, shared memory", 481), of_step] == pytest.approx(1e3 * 5.453 / 512)
    assert published.loc[("JAX, whole loop (an empty program)", 481), of_step] == pytest.approx(1e3 * 0.0706 / 512)
    for name, way in (
        ("one after another", "sync"), ("processes, pipes", "pipes"), ("a process each, pipes", "pipes each"),
        ("a process each, shared memory", "processes each"), ("NumPy arrays", "arrays"), ("JAX, stepped from Python", "compiled"),
        ("JAX, whole loop", "fused"),
    ):  # fmt: skip
        for count in (1, 481, 4096):
            assert measured.loc[(name, count), of_step] == pytest.approx(1e3 * SECONDS[way] / 512)
            assert each.loc[(name, count), of_one] == pytest.approx(1e6 * SECONDS[way] / 512 / count)
    assert "returned nothing, so that the compiler removed the loop" in figure.text
    assert figure.text.endswith("The whole loop takes 0.125 s here for 512 steps of 481 environments.")
    assert figure.panels[1].chart.to_dict()["layer"][1]["encoding"]["y"]["scale"]["type"] == "log"
    for_paper(figure)


def test_times_of_a_step_are_those_of_one_kind_of_machine(tmp_path: Path) -> None:
    data = data_of(tmp_path, [1])
    there = {"plan": "other", "cluster": "b"}  # where a step takes twice as long
    other = data.rows["seed"] < 3
    rows = [data.rows, data.rows.assign(**there), data.rows[other].assign(machine="D", plan="a third")]
    phases = [
        data.phases.assign(plan=plan, seconds=data.phases["seconds"] * factor) if plan else data.phases
        for plan, factor in (("", 1), ("other", 2), ("a third", 3))
    ]
    both = replace(data, rows=pd.concat(rows, ignore_index=True), phases=pd.concat(phases, ignore_index=True))
    (figure,) = papers.figures("doors-jax-environments", both).drawn
    own = data.rows["cluster"].iloc[0]
    titles = [f"Measured{which}, {place}" for place in sorted(["b", own]) for which in ("", ", per environment")]
    assert [panel.title for panel in figure.panels] == ["Published", *titles]
    for panel in figure.panels[1::2]:
        found = panel.values.set_index("configuration").loc["one after another"]
        factor = 2 if panel.title.endswith(", b") else 1
        assert found["time of a step (ms), median"] == pytest.approx(1e3 * factor * SECONDS["sync"] / 512)
        assert found["seeds"] == 3
    assert figure.text.endswith(" runs on other kinds of machines.")


def trained(tmp_path: Path, study: str, **values: Any) -> PaperData:
    """Return the data of a packaged study whose cells took 1 s for each update of an interval, and twice as long if they log."""
    plan = planned(tmp_path / "plan", study, "sol")
    for cell in cells_of(plan):
        time = float(cell["config"].get("updates", 1)) * (2.0 if "tracking" in cell["config"] else 1.0)
        write_record(plan, cell, training_time=time, **values)
    collect([plan], tmp_path / "d", no_slurm())
    rows = read_cells(tmp_path / "d", None).assign(shared=False)
    tables = (hpcrl.load(tmp_path / "d", name) for name in ("episodes", "samples"))
    return PaperData(rows, *tables, None, hpcrl.load(tmp_path / "d", "phases"))


def test_rewards_of_table_2_are_those_of_the_last_episodes_beside_the_published(tmp_path: Path) -> None:
    # Of 2,002 episodes with 10 steps each, the first two do not count.
    data = trained(tmp_path, "doors-dqn-published", returns=(1000.0, 1000.0, *([6.0, 8.0] * 1000)))
    drawn = {figure.name: figure for figure in papers.figures("doors-jax-environments", data).drawn}
    published, measured = (
        panel.values.set_index("configuration")["reward per step, median"] for panel in drawn["doors-rewards"].panels
    )
    assert published.to_dict() == {
        "PyTorch, 64 Gymnasium environments": 0.73,
        "Flax, 64 Gymnasium environments": 0.64,
        "Flax, 1,024 JAX environments": 0.71,
    }
    assert measured.to_dict() == pytest.approx(dict.fromkeys(measured.index, 0.7))
    assert list(measured.index)[-2:] == [
        "Flax, 1,024 faulty JAX environments",
        "Flax, 1,024 faulty JAX environments, the article's replay",
    ]
    assert set(published.index) < set(measured.index) and len(measured) == 7
    # The cell that the article does not have is a stage between its first row and that of Flax with the environment in JAX.
    other = drawn["doors-table-2-other-way"].panels
    assert other[0].values["stage"].tolist() == [
        "PyTorch, 64 Gymnasium environments",
        "PyTorch, 64 JAX environments",
        "Flax, 64 JAX environments",
    ]
    assert other[1].values["stage"].tolist() == ["the environment in JAX", "Flax instead of PyTorch"]
    assert other[0].values["seeds"].tolist() == [5] * 3
    # Faulty environments are no stage of the article's table.
    stages = drawn["doors-table-2"].panels[0].values
    assert stages["training time (s), geometric mean"].tolist() == pytest.approx([1, 1, 1, 20, 8])
    assert stages["seeds"].tolist() == [5] * 5
    for figure in drawn.values():
        for_paper(figure)


def test_table_2_with_logging_begins_and_ends_with_the_article_s_own_loop(tmp_path: Path) -> None:
    data = trained(tmp_path, "doors-dqn-tracking")
    drawn = {figure.name: figure for figure in papers.figures("doors-jax-environments", data).drawn}
    assert {"doors-table-2", "doors-table-2-logged", "doors-logging-torch", "doors-logging-flax"} <= set(drawn)
    times, changes = (panel.values for panel in drawn["doors-table-2-logged"].panels)
    assert times["training time (s), geometric mean"].tolist() == pytest.approx([2, 1, 1, 1, 20, 8, 16])
    assert changes["stage"].iloc[[0, -1]].tolist() == ["no logging", "logging"]
    assert changes["ratio"].prod() == pytest.approx(8)


def test_runs_that_miss_the_shortest_path_return_are_named(tmp_path: Path) -> None:
    study = dqn_study(
        paper="doors-jax-environments",
        seeds=5,
        axes={"framework": ["numpy"], "environments": [1, 64]},
        goal=14,
    )
    study["workload"]["environment"] = "Doors-v0"
    plan = planned(tmp_path / "plan", study)
    for cell in cells_of(plan):
        best = 15.0 + cell["config"]["seed"]
        missed = {1: 1, 64: 2}[cell["config"]["environments"]]  # so many seeds
        score = best - 0.5 * (cell["config"]["seed"] <= missed)
        entry = {"time": 1.0, "step": None, "values": {BEST_POSSIBLE: best}}
        write_record(plan, cell, reported=[entry], final_score=score)
    collect([plan], tmp_path / "d", no_slurm())
    rows = read_cells(tmp_path / "d", None).assign(shared=False)
    tables = (hpcrl.load(tmp_path / "d", name) for name in ("episodes", "samples"))
    data = PaperData(rows, *tables, None, hpcrl.load(tmp_path / "d", "phases"))
    (figure,) = papers.figures("doors-jax-environments", data).drawn
    assert figure.name == "doors-optimum"
    assert "in at least 4 of 5 seeds by 1 of 2 configurations." in figure.text
    assert figure.text.endswith("Not by: NumPy eager environments 64 (3 of 5).")
    for_paper(figure)
    # Another CPU makes no other seed of one.
    twice = replace(data, rows=pd.concat([rows, rows.assign(machine="D")], ignore_index=True))
    (same,) = papers.figures("doors-jax-environments", twice).drawn
    assert same.text == figure.text
    assert same.panels[0].values["seeds"].tolist() == [5, 5]


def test_without_such_a_run_there_is_no_figure(tmp_path: Path) -> None:
    data = data_of(tmp_path, [1])
    found = papers.figures("doors-jax-environments", PaperData(data.rows.assign(workload="dqn"), *[data.episodes] * 2, None, data.phases))  # fmt: skip
    assert found.drawn == []
    assert found.empty == [
        ("Figure 11: time to step all environments", "no run that only stepped environments"),
        ("Table 2: what makes the training times", "not all of its rows were run on one machine"),
    ]
