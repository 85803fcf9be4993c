"""The figure of changes that are made one after another."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hpcrl.report.figures.changes import Stage, changed

STAGES = (
    Stage("slow", "", {"framework": "torch", "environments": 1, "tracking": None}),
    Stage("vector", "16 environments", {"framework": "torch", "environments": 16, "tracking": None}),
    Stage("other", "JAX", {"framework": "jax", "environments": 16, "tracking": None}),
)


def rows(**times: list[float]) -> pd.DataFrame:
    made: list[dict[str, Any]] = []
    for stage in STAGES:
        config = {name: value for name, value in stage.settings.items() if value is not None}
        for seed, time in enumerate(times.get(stage.name, ())):
            made.append({"config": json.dumps({**config, "seed": seed}), "outcome": "completed", "training_time": time})
    # A failed run, and one of another configuration, are no part of a stage.
    made.append({"config": json.dumps(STAGES[0].settings), "outcome": "failed", "training_time": 1e6})
    logged = {"framework": "torch", "environments": 1, "tracking": "mlflow"}
    made.append({"config": json.dumps(logged), "outcome": "completed", "training_time": 1e6})
    return pd.DataFrame(made)


def test_each_change_is_a_ratio_to_the_stage_before_and_the_ratios_multiply_to_the_whole() -> None:
    found = changed(
        rows(slow=[90, 100, 110], vector=[24, 25, 26], other=[5, 5, 5]), STAGES, "training_time", "time (s)"
    )
    assert found is not None
    values, effects = (panel.values for panel in found.panels)
    assert list(values["stage"]) == ["slow", "vector", "other"]
    assert list(effects["stage"]) == ["16 environments", "JAX"]
    means = [np.exp(np.mean(np.log(each))) for each in ([90, 100, 110], [24, 25, 26], [5, 5, 5])]
    np.testing.assert_allclose(values["time (s), geometric mean"], means)
    np.testing.assert_allclose(effects["ratio"], [means[1] / means[0], means[2] / means[1]])
    np.testing.assert_allclose(effects["seconds"], np.diff(means))
    assert effects["ratio"].prod() == pytest.approx(means[2] / means[0])
    assert (effects["from"] < effects["ratio"]).all() and (effects["ratio"] < effects["to"]).all()
    assert found.words.startswith("From slow to other: 0.050 times the time (")


def test_with_a_stage_without_runs_there_is_no_figure_and_one_seed_has_no_interval() -> None:
    assert changed(rows(slow=[100], other=[5]), STAGES, "training_time", "time (s)") is None
    found = changed(rows(slow=[100], vector=[25], other=[5]), STAGES, "training_time", "time (s)")
    assert found is not None
    assert found.panels[1].values["from"].isna().all()
    assert found.words == "From slow to other: 0.050 times the time."
    for panel in found.panels:
        panel.chart.to_dict()
