"""Write a dataset for other tools: CSV, TensorBoard, MLflow, and CSV with the names of CleanRL and openrlbenchmark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa

from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.events import EPISODE, EVALUATION, EventFile, file_name
from hpcrl.formats.tables import SCHEMAS, load_table
from hpcrl.report.spreadsheet import to_csv

# Columns with the results of a cell; the others are its configuration.
_METRICS = (
    "wall_time", "training_time", "setup_time", "compile_time", "steps", "episodes", "final_score", "best_score",
    "goal_step", "goal_time", "cpu_seconds", "cpu_utilisation", "memory_peak", "rss_peak", "pss_peak", "gpu_percent", "gpu_memory_peak",
    "energy",
)  # fmt: skip
_PARAMETERS = (
    "study", "cluster", "workload", "framework", "execution", "parallelism", "seed", "nodes", "tasks", "cpus", "gpus",
    "gpu_type", "partition", "environment", "outcome", "plan", "cell", "attempt",
)  # fmt: skip
_AT_ONCE = 1_000  # metrics that MLflow accepts in one call


def export(dataset: Path, kind: str, output: Path) -> int:
    """Write a dataset for another tool. Return the number of runs (for CSV: tables) written.

    Args:
        kind: one of :data:`KINDS`.
        output: a directory that does not exist yet; for MLflow also an address (``http://...``, ``sqlite:///...``).

    Raises:
        UsageError: there is no dataset, or the output already exists.
        HpcrlError: the tool's package is not installed, or it cannot be written.
    """
    if "://" not in str(output) and output.exists() and any(output.iterdir()):
        raise UsageError(f"{output}: already exists: choose another directory with -o")
    try:
        return KINDS[kind](dataset, output)
    except ImportError as error:
        raise HpcrlError(
            f"{kind}: the package {error.name} is not installed: install hpcrl[{kind}], or pip install {error.name}"
        ) from None
    except OSError as error:
        raise HpcrlError(f"{output}: cannot be written: {error.strerror}") from None


def _csv(dataset: Path, output: Path) -> int:
    output.mkdir(parents=True, exist_ok=True)
    for name in SCHEMAS:
        table = load_table(dataset, name)
        for field in SCHEMAS[name]:
            if pa.types.is_list(field.type):
                lists = [None if each is None else list(each) for each in table[field.name]]
                table[field.name] = pd.Series(lists, table.index, dtype=object)
        (output / f"{name}.csv").write_text(to_csv(table), encoding="utf-8")
    return len(SCHEMAS)


class _Point(NamedTuple):
    """A return or a reported value; `step` is 0 if none was reported."""

    kind: str
    name: str
    step: int
    time: float
    value: float
    length: float

    @property
    def tag(self) -> str:
        return {"train": EPISODE, "evaluation": EVALUATION}.get(self.kind, f"value/{self.name}")


def _runs(dataset: Path) -> Iterator[tuple[dict[str, Any], list[_Point]]]:
    """Give each attempt, and its points in order of time."""
    episodes = load_table(dataset, "episodes").sort_values("time")
    points: dict[tuple[str, str, str], list[_Point]] = {}
    columns = ("plan", "cell", "attempt", "kind", "name", "step", "time", "value", "length")
    for plan, cell, attempt, kind, name, step, *numbers in zip(
        *(episodes[column].tolist() for column in columns), strict=True
    ):
        point = _Point(kind, name, 0 if pd.isna(step) else int(step), *(float(each) for each in numbers))
        points.setdefault((plan, cell, attempt), []).append(point)
    for record in load_table(dataset, "cells").to_dict("records"):
        row = {str(name): value for name, value in record.items()}
        yield row, points.get((row["plan"], row["cell"], row["attempt"]), [])


def _name(row: dict[str, Any]) -> str:
    parts = [row["study"], row["cluster"], row["framework"], row["execution"], row["parallelism"], row["seed"]]
    return "-".join(str(part) for part in (*parts, row["cell"], row["attempt"]) if not pd.isna(part))


def _openrlbenchmark(dataset: Path, output: Path) -> int:
    """Write one CSV for each run, with the names that CleanRL gives its metrics."""
    count = 0
    for row, points in _runs(dataset):
        train = [each for each in points if each.kind in ("train", "value") and each.name == "return"]
        table = pd.DataFrame(
            {
                "global_step": [each.step for each in train],
                "_runtime": [each.time for each in train],
                "charts/episodic_return": [each.value for each in train],
                "charts/episodic_length": [each.length for each in train],
            }
        )
        config = json.loads(row["config"])
        experiment = "-".join(str(config[key]) for key in sorted(config) if key != "seed" and config[key] is not None)
        place = output / row["study"] / row["cluster"] / (experiment or "run")
        place.mkdir(parents=True, exist_ok=True)
        name = f"seed-{row['seed']}-{row['cell']}-{row['attempt']}.csv"
        (place / name).write_text(to_csv(table), encoding="utf-8")
        count += 1
    return count


def _tensorboard(dataset: Path, output: Path) -> int:
    samples = _of_first_ranks(dataset, "samples", ["time", "machine_cpu_percent", "machine_memory_percent"])
    phases = _of_first_ranks(dataset, "phases", ["phase", "seconds"])
    count = 0
    for row, points in _runs(dataset):
        attempt = row["plan"], row["cell"], row["attempt"]
        started = 0.0 if pd.isna(row["started"]) else float(row["started"])
        place = output / _name(row)
        place.mkdir(parents=True)
        file = EventFile(place / file_name(started, "dataset", row["attempt"]), started)
        for time, each in sorted(
            [*((each.time, each) for each in points), *((each[0], each) for each in samples.get(attempt, ()))],
            key=lambda timed: timed[0],
        ):
            if isinstance(each, _Point):
                file.scalar(each.tag, time, each.value, each.step)
            else:
                file.machine(*each)
        wall = 0.0 if pd.isna(row["wall_time"]) else float(row["wall_time"])
        file.phases(wall, dict(phases.get(attempt, ())))
        for name in _METRICS:
            if not pd.isna(row[name]):
                file.scalar(f"cell/{name}", wall, float(row[name]))
        file.close()
        count += 1
    return count


def _of_first_ranks(dataset: Path, table: str, columns: list[str]) -> dict[tuple[str, str, str], list[tuple[Any, ...]]]:
    """Return the rows of each attempt's first rank."""
    rows = load_table(dataset, table)
    rows = rows[rows["rank"] == 0]
    found: dict[tuple[str, str, str], list[tuple[Any, ...]]] = {}
    keys = zip(*(rows[name].tolist() for name in ("plan", "cell", "attempt")), strict=True)
    for key, values in zip(keys, zip(*(rows[name].tolist() for name in columns), strict=True), strict=True):
        found.setdefault(key, []).append(values)
    return found


def _mlflow(dataset: Path, output: Path) -> int:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    where = str(output)
    if "://" not in where:
        output.mkdir(parents=True)
        where = f"sqlite:///{output.resolve()}/mlflow.db"
    client = MlflowClient(tracking_uri=where)
    experiments: dict[str, str] = {}
    count = 0
    for row, points in _runs(dataset):
        study = row["study"]
        if study not in experiments:
            known = client.get_experiment_by_name(study)
            experiments[study] = known.experiment_id if known else client.create_experiment(study)
        started = 0 if pd.isna(row["started"]) else int(row["started"] * 1000)
        run = client.create_run(experiments[study], start_time=started, run_name=_name(row))
        parameters = [Param(name, str(row[name])) for name in _PARAMETERS if not pd.isna(row[name])]
        metrics = [Metric(name, float(row[name]), started, 0) for name in _METRICS if not pd.isna(row[name])]
        metrics += [Metric(each.tag, each.value, started + int(each.time * 1000), each.step) for each in points]
        client.log_batch(run.info.run_id, params=parameters)
        for first in range(0, len(metrics), _AT_ONCE):
            client.log_batch(run.info.run_id, metrics=metrics[first : first + _AT_ONCE])
        status = "FINISHED" if row["outcome"] == "completed" else "FAILED"
        wall = 0.0 if pd.isna(row["wall_time"]) else float(row["wall_time"])
        client.set_terminated(run.info.run_id, status, end_time=started + int(wall * 1000))
        count += 1
    return count


KINDS: dict[str, Callable[[Path, Path], int]] = {
    "csv": _csv,
    "openrlbenchmark": _openrlbenchmark,
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
}
