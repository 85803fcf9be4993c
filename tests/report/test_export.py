from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hpcrl.collect.merge import collect
from hpcrl.formats.tables import SCHEMAS
from hpcrl.report.spreadsheet import to_csv
from tests.builders import cells_of, dqn_study, planned, write_record
from tests.collect.gathering import no_slurm


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    plan = planned(tmp_path / "p", dqn_study(seeds=2))
    for cell in cells_of(plan):
        write_record(plan, cell, returns=(10.0, 20.0, 30.0), phases={"update": 2.5})
    collect([plan], tmp_path / "d", no_slurm())
    return tmp_path / "d"


def test_csv(dataset: Path, tmp_path: Path, hpcrl: Callable[..., Any]) -> None:
    shown = hpcrl("export", dataset, "--to", "csv", "-o", tmp_path / "out")
    assert (shown.code, shown.out) == (0, f"4 tables written to {tmp_path / 'out'}\n")
    for name, schema in SCHEMAS.items():
        assert list(pd.read_csv(tmp_path / "out" / f"{name}.csv").columns) == schema.names
    assert list(pd.read_csv(tmp_path / "out/episodes.csv")["value"]) == [10, 20, 30] * 2


def test_openrlbenchmark(dataset: Path, tmp_path: Path, hpcrl: Callable[..., Any]) -> None:
    assert hpcrl("export", dataset, "--to", "openrlbenchmark", "-o", tmp_path / "out").code == 0
    files = sorted((tmp_path / "out").rglob("*.csv"))
    assert len(files) == 2
    table = pd.read_csv(files[0])
    assert list(table.columns) == ["global_step", "_runtime", "charts/episodic_return", "charts/episodic_length"]
    assert list(table["charts/episodic_return"]) == [10, 20, 30]


def scalars_of(opened: Any) -> list[str]:
    return list(opened.Tags()["scalars"])


def test_tensorboard(dataset: Path, tmp_path: Path, hpcrl: Callable[..., Any]) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert hpcrl("export", dataset, "--to", "tensorboard", "-o", tmp_path / "out").code == 0
    runs = sorted((tmp_path / "out").iterdir())
    assert len(runs) == 2
    opened = reading.EventAccumulator(str(runs[0]))
    opened.Reload()
    found = {
        tag: [(each.step, each.wall_time, each.value) for each in opened.Scalars(tag)] for tag in scalars_of(opened)
    }
    assert found["return/episode"] == [(10, 2, 10), (20, 3, 20), (30, 4, 30)]
    assert found["machine/cpu_percent"] == [(10, 2, 50), (20, 3, 50), (30, 4, 50)]
    assert "machine/memory_percent" not in found  # the records have none
    assert found["cell/final_score"] == [(30, 5, 20)]
    assert found["phase/update"] == [(30, 5, 2.5)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning:mlflow")
def test_mlflow(dataset: Path, tmp_path: Path, hpcrl: Callable[..., Any]) -> None:
    mlflow = pytest.importorskip("mlflow")
    assert hpcrl("export", dataset, "--to", "mlflow", "-o", tmp_path / "out").code == 0
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/out/mlflow.db")
    experiment = client.get_experiment_by_name("short")
    runs = client.search_runs([experiment.experiment_id])
    assert len(runs) == 2
    assert runs[0].data.params["framework"] == "numpy"
    assert runs[0].data.metrics["final_score"] == 20
    history = client.get_metric_history(runs[0].info.run_id, "return/episode")
    assert [(each.step, each.value) for each in history] == [(10, 10), (20, 20), (30, 30)]


def test_what_exists_is_kept(dataset: Path, tmp_path: Path, hpcrl: Callable[..., Any]) -> None:
    shown = hpcrl("export", dataset, "--to", "csv", "-o", dataset)
    assert shown.code == 2
    assert "already exists: choose another directory" in shown.err


def test_a_column_of_lists_in_csv() -> None:
    table = pd.DataFrame({"core_percent": [[1.0, 2.0], None, "=1+1"]})
    assert to_csv(table) == 'core_percent\n"[1.0, 2.0]"\n""\n\'=1+1\n'
