from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from hpcrl.report.design import FRAMEWORKS
from hpcrl.report.figures import papers
from hpcrl.report.figures.drawing import Figure, Panel

NONE = pd.DataFrame()


def row(framework: str, execution: str, **changes: Any) -> dict[str, Any]:
    return {
        "cluster": "sol", "machine": "C, 2 threads", "framework": framework, "execution": execution, "what": f"{framework} {execution}", "where": "1 core", "gpus": 0, "tasks": 1, "overcommit": False, "nodes": 1, "parallelism": "none", "seed": 1, "outcome": "completed",
        "final_score": 1000.0, "training_time": 10.0, "machine_cpu_percent": 50.0, "machine_memory_percent": 5.0,
        "gpu_percent": float("nan"), "shared": False,
    } | changes  # fmt: skip


def sol(*rows: dict[str, Any], goal: float | None = None) -> papers.PaperFigures:
    return papers.figures("sol-dqn-frameworks", papers.PaperData(pd.DataFrame(rows), NONE, NONE, goal))


def find(found: papers.PaperFigures, number: int) -> Figure:
    (figure,) = [each for each in found.drawn if each.name == f"sol-{number:02}"]
    return figure


def notes(panel: Panel) -> dict[str, str]:
    """Return what is written in place of values, by line."""
    data = [row for rows in panel.chart.to_dict()["datasets"].values() for row in rows]
    return {each["line"]: each["note"] for each in data if "note" in each}


def values(panel: Panel) -> dict[str, float]:
    return dict(panel.values.iloc[:, :2].itertuples(index=False))


def test_the_figures_of_the_sol_paper() -> None:
    found = sol(
        row("jax", "lazy"),
        row("jax", "lazy", seed=2, final_score=500.0),
        row("jax", "lazy", seed=3, final_score=600.0),
        row("jax", "eager", final_score=float("nan"), outcome="timeout"),
        row("jax", "lazy", tasks=2, parallelism="horovod"),
        row("jax", "fused"),
        row("torch", "lazy"),
        row("mxnet", "eager", tasks=2, parallelism="native"),
        goal=1000.0,
    )
    drawn = [figure.title.partition(":")[0] for figure in found.drawn]
    empty = [title.partition(":")[0] for title, _ in found.empty]
    assert sorted(drawn + empty) == sorted(f"Figure {number}" for number in range(1, 14))
    assert empty == [f"Figure {number}" for number in (4, 5, 6, 7, 8, 9, 10)]
    whys = dict(found.empty)
    assert whys["Figure 10: GPU utilisation for all tasks and frameworks"] == "no cell with a GPU was run"
    assert whys["Figure 7: Final score attained by MXNet"] == "no part of it was run"
    (panel,) = find(found, 1).panels
    assert notes(panel) == {
        "lazy, GPU": "not run",
        "eager, CPU": "did not end",
        "eager, GPU": "not run",
        "eager, Horovod (2 CPU ranks)": "not run",
    }
    assert values(panel)["lazy, CPU"] == 600  # the median, as in the table of the comparison
    assert "median over seeds" in find(found, 1).text
    assert "Not run: lazy, GPU; eager, GPU; eager, Horovod (2 CPU ranks)." in find(found, 1).text
    assert "Without GPU utilisation (%): no cell with a GPU was run." in find(found, 2).text
    assert notes(find(found, 11).panels[0])["JAX eager, CPU"] == "did not end"


def test_frameworks_have_their_colours_in_every_figure() -> None:
    found = sol(row("mxnet", "lazy"), row("jax", "lazy"))
    assert {key.name: key.colour for key in find(found, 11).legend} == {
        name: FRAMEWORKS[key][1] for key, name in (("jax", "JAX"), ("tensorflow", "TensorFlow"), ("mxnet", "MXNet"))
    }
    for number, name in ((1, "jax"), (7, "mxnet")):
        data = find(found, number).panels[0].chart.to_dict()
        assert FRAMEWORKS[name][1] in str(data)


def test_the_machine_s_values_are_not_drawn_where_cells_shared_it() -> None:
    found = sol(row("jax", "lazy", shared=True), row("jax", "eager"))
    whys = {title.partition(":")[0]: why for title, why in found.empty}
    for number in (2, 12, 13):
        assert "cells shared the machine" in whys[f"Figure {number}"]


def test_gpu_cells_take_the_place_of_their_stand_ins() -> None:
    found = sol(
        row("jax", "lazy", tasks=2, parallelism="horovod", training_time=99.0),
        row("jax", "lazy", tasks=2, parallelism="horovod", gpus=2, training_time=5.0),
    )
    assert values(find(found, 3).panels[0]) == pytest.approx({"lazy, Horovod": 5.0})


def test_the_figures_are_of_one_cluster_and_one_kind_of_machine() -> None:
    """A seed that ran on two kinds of nodes is one, and its time is not the mean of both."""
    here = [row("jax", "lazy", seed=seed) for seed in (1, 2, 3)]
    there = [row("jax", "lazy", seed=seed, training_time=99.0, machine="D, 2 threads") for seed in (1, 2)]
    away = [row("jax", "lazy", seed=seed, training_time=55.0, cluster="cirrus") for seed in (1, 2, 3, 4)]
    figure = find(sol(*here, *there, *away), 3)
    (panel,) = figure.panels
    assert values(panel) == pytest.approx({"lazy, CPU": 10.0})
    assert panel.values["seeds"].tolist() == [3]
    assert figure.text.endswith(" Left out: 2 runs on other kinds of machines. Only the runs on sol are drawn.")
    assert "Left out" not in find(sol(*here), 3).text


@pytest.mark.parametrize("other", [{"what": "jax lazy rate 0.1"}, {"cpus": 4, "where": "4 cores"}])
def test_two_configurations_are_not_one_task(other: dict[str, Any]) -> None:
    """A study that extends the paper's has another axis. Runs that did not complete have no value, and do not count."""
    second = row("jax", "lazy", training_time=99.0, **other)
    found = sol(row("jax", "lazy"), second, row("jax", "eager"))
    assert notes(find(found, 3).panels[0])["lazy, CPU"] == "means 2 configurations"
    assert values(find(found, 3).panels[0]) == pytest.approx({"eager, CPU": 10.0})
    (why,) = [why for title, why in sol(row("jax", "lazy"), second).empty if title.startswith("Figure 3:")]
    assert why == "a name of the paper means several configurations of this study"
    failed = sol(row("jax", "lazy"), second | {"outcome": "failed", "training_time": 1.0})
    assert values(find(failed, 3).panels[0]) == pytest.approx({"lazy, CPU": 10.0})


def test_a_study_without_a_paper() -> None:
    found = papers.figures("None", papers.PaperData(pd.DataFrame([row("jax", "lazy")]), NONE, NONE))
    assert (found.drawn, found.empty) == ([], [])


def test_axes_hold_the_intervals_too() -> None:
    """An interval of few seeds is longer than their range: it would be drawn over the values beside the figure."""
    found = find(sol(*(row("jax", "lazy", seed=seed, training_time=10.0 + seed) for seed in (1, 2, 5))), 3)
    chart = found.panels[0].chart.to_dict()
    high = max(row["high"] for rows in chart["datasets"].values() for row in rows if row.get("high"))
    assert high > 15 * 1.05
    domains = [
        layer["encoding"]["x"]["scale"]["domain"] for layer in chart["layer"] if "scale" in layer["encoding"]["x"]
    ]
    assert domains and all(domain == [0.0, pytest.approx(high, rel=1e-3)] for domain in domains)
