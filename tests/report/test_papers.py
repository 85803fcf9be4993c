from __future__ import annotations

from typing import Any

import pandas as pd

from hpcrl.report.figures import papers


def row(framework: str, execution: str, **changes: Any) -> dict[str, Any]:
    return {
        "framework": framework, "execution": execution, "gpus": 0, "tasks": 1, "parallelism": "none", "seed": 1, "outcome": "completed",
        "final_score": 1000.0, "training_time": 10.0, "machine_cpu_percent": 50.0, "machine_memory_percent": 5.0,
        "gpu_percent": float("nan"),
    } | changes  # fmt: skip


def notes(chart: Any) -> dict[tuple[str, str], str]:
    """Return what is written in place of a bar, by framework and task."""
    return {(each["name"], each["task"]): each["note"] for each in bars(chart)}


def bars(chart: Any) -> list[dict[str, Any]]:
    """Return the data of a figure's bars."""
    (found,) = [rows for rows in chart.to_dict()["datasets"].values() if "note" in rows[0]]
    return list(found)


def test_the_thirteen_figures_of_the_sol_paper() -> None:
    rows = pd.DataFrame(
        [
            row("jax", "lazy"),
            row("jax", "lazy", seed=2, final_score=500.0),
            row("jax", "eager", final_score=float("nan"), outcome="timeout"),
            row("jax", "lazy", tasks=2, parallelism="horovod"),
            row("jax", "fused"),
            row("torch", "lazy"),
            row("mxnet", "eager", tasks=2, parallelism="native"),
        ]
    )
    drawn = papers.figures("sol-dqn-frameworks", rows, 1000.0)
    assert [figure.title.partition(":")[0] for figure in drawn] == [f"Figure {number}" for number in range(1, 14)]
    first = notes(drawn[0].chart)
    assert first == {
        ("JAX", "lazy, CPU"): "",
        ("JAX", "lazy, GPU"): "not run",
        ("JAX", "lazy, Horovod (2 CPU ranks)"): "",
        ("JAX", "eager, CPU"): "did not end",
        ("JAX", "eager, GPU"): "not run",
        ("JAX", "eager, Horovod (2 CPU ranks)"): "not run",
    }
    (bar,) = [each["value"] for each in bars(drawn[0].chart) if each["task"] == "lazy, CPU"]
    assert bar == 750
    assert notes(drawn[2].chart)["JAX", "eager, CPU"] == "did not end"
    assert "Not run: lazy, GPU; eager, GPU; eager, Horovod (2 CPU ranks)." in drawn[0].text
    assert notes(drawn[9].chart)["JAX", "lazy, CPU"] == "no GPU in it"
    assert set(notes(drawn[6].chart).values()) == {"not run"}


def test_gpu_cells_take_the_place_of_their_stand_ins() -> None:
    rows = pd.DataFrame(
        [
            row("jax", "lazy", tasks=2, parallelism="horovod", training_time=99.0),
            row("jax", "lazy", tasks=2, parallelism="horovod", gpus=2, training_time=5.0),
        ]
    )
    times = bars(papers.figures("sol-dqn-frameworks", rows, None)[2].chart)
    assert [each["value"] for each in times if each["task"] == "lazy, Horovod"] == [5.0]


def test_a_study_without_a_paper() -> None:
    assert papers.figures("None", pd.DataFrame([row("jax", "lazy")]), None) == []
