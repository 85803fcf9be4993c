"""Figure 11 of the Doors study: the published times, and those of a dataset with known times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hpcrl
from hpcrl.collect.merge import collect
from hpcrl.report.figures import papers
from hpcrl.report.figures.drawing import for_paper
from hpcrl.report.figures.papers.data import PaperData
from hpcrl.report.write import read_cells
from tests.builders import cells_of, dqn_study, planned, write_record
from tests.collect.gathering import no_slurm

# Seconds of 512 steps, by the way of stepping.
SECONDS = {"sync": 4.0, "pipes": 2.0, "arrays": 0.5, "compiled": 0.25, "fused": 0.125}


def data_of(tmp_path: Path, environments: list[int]) -> PaperData:
    ways: list[dict[str, Any]] = [
        *({"framework": "numpy", "stepping": name} for name in ("sync", "pipes", "arrays")),
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
    assert published.loc[("JAX, whole loop (an empty program)", 481), of_step] == pytest.approx(1e3 * 0.0706 / 512)
    for name, way in (
        ("one after another", "sync"), ("processes, pipes", "pipes"), ("NumPy arrays", "arrays"), ("JAX, stepped from Python", "compiled"),
        ("JAX, whole loop", "fused"),
    ):  # fmt: skip
        for count in (1, 481, 4096):
            assert measured.loc[(name, count), of_step] == pytest.approx(1e3 * SECONDS[way] / 512)
            assert each.loc[(name, count), of_one] == pytest.approx(1e6 * SECONDS[way] / 512 / count)
    assert "returned nothing, so that the compiler removed the loop" in figure.text
    assert figure.text.endswith("The whole loop takes 0.125 s here for 512 steps of 481 environments.")
    assert figure.panels[1].chart.to_dict()["layer"][1]["encoding"]["y"]["scale"]["type"] == "log"
    for_paper(figure)


def test_without_such_a_run_there_is_no_figure(tmp_path: Path) -> None:
    data = data_of(tmp_path, [1])
    found = papers.figures("doors-jax-environments", PaperData(data.rows.assign(workload="dqn"), *[data.episodes] * 2, None, data.phases))  # fmt: skip
    assert found.drawn == []
    assert found.empty == [
        ("Figure 11: time to step all environments", "no run that only stepped environments"),
        ("Table 2: what makes the training times", "not all of its rows were run on one machine"),
    ]
