"""Write a dataset for other tools: CSV, TensorBoard, MLflow, and CSV with the names of CleanRL and openrlbenchmark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa

from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.events import EPISODE, EVALUATION, EventFile, file_name
from hpcrl.formats.files import plain_name
from hpcrl.formats.mlflow import metrics_of_step, plain
from hpcrl.formats.tables import SCHEMAS, load_table
from hpcrl.report.spreadsheet import to_csv
from hpcrl.report.tracking import Tracking, agents_of, check_address, refusals
from hpcrl.secrets import without_password

# Columns with the results of a cell; the others are its configuration.
_METRICS = (
    "wall_time", "training_time", "setup_time", "compile_time", "steps", "episodes", "final_score", "best_score",
    "goal_step", "goal_time", "cpu_seconds", "cpu_utilisation", "memory_peak", "rss_peak", "pss_peak", "gpu_percent", "gpu_memory_peak",
    "energy",
)  # fmt: skip


def export(dataset: Path, kind: str, place: Path | str, report: Path | None = None, plans: Sequence[Path] = ()) -> int:
    """Write a dataset for another tool. Return the number of runs (for CSV: tables) written.

    MLflow's store may exist already: runs that it has are not written again.

    Args:
        kind: one of :data:`KINDS`, or ``mlflow``.
        place: a directory that does not exist yet; for MLflow also an address as text (``http://...``, ``sqlite:///...``).
        report: a report whose page and figures go with the runs; for MLflow only.
        plans: plans whose trained agents go with their runs; for MLflow only.

    Raises:
        UsageError: there is no dataset, or the output already exists.
        HpcrlError: the tool's package is not installed, or it cannot be written.
    """
    # A path would lose a slash of an address.
    output = Path(place)
    if kind != "mlflow" and (report or plans):
        raise UsageError(f"{kind}: has no place for reports and agents: leave out --report and --agents")
    if report and not (report / "report.html").is_file():
        raise UsageError(f"{report}: is not a report (no report.html): write it with `hpcrl report`")
    own = kind == "mlflow" and (output / "mlflow.db").is_file()
    if "://" not in str(place) and output.is_file():
        raise UsageError(f"{output}: is a file: choose a directory with -o")
    if "://" not in str(place) and output.exists() and any(output.iterdir()) and not own:
        raise UsageError(f"{output}: already exists: choose another directory with -o")
    try:
        return _mlflow(dataset, str(place), report, plans) if kind == "mlflow" else KINDS[kind](dataset, output)
    except ImportError as error:
        raise HpcrlError(
            f"{kind}: the package {error.name} is not installed: install hpcrl[{kind}], or pip install {error.name}"
        ) from None
    except OSError as error:
        raise HpcrlError(f"{without_password(str(output))}: cannot be written: {error.strerror}") from None


def _csv(dataset: Path, output: Path) -> int:
    output.mkdir(parents=True, exist_ok=True)
    for name in SCHEMAS:
        table = load_table(dataset, name)
        for field in SCHEMAS[name]:
            if pa.types.is_list(field.type):
                lists = [None if value is None else list(value) for value in table[field.name]]
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
    """Give each attempt, and its points in order of time. Of what every rank of a command reported, the first rank's counts."""
    episodes = load_table(dataset, "episodes").sort_values("time")
    episodes = episodes[(episodes["kind"] != "value") | (episodes["rank"] == 0)]
    points: dict[tuple[str, str, str], list[_Point]] = {}
    columns = ("plan", "cell", "attempt", "kind", "name", "step", "time", "value", "length")
    for plan, cell, attempt, kind, name, step, *numbers in zip(
        *(episodes[column].tolist() for column in columns), strict=True
    ):
        point = _Point(kind, name, 0 if pd.isna(step) else int(step), *(float(number) for number in numbers))
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
        train = [point for point in points if point.kind in ("train", "value") and point.name == "return"]
        table = pd.DataFrame(
            {
                "global_step": [point.step for point in train],
                "_runtime": [point.time for point in train],
                "charts/episodic_return": [point.value for point in train],
                "charts/episodic_length": [point.length for point in train],
            }
        )
        config = json.loads(row["config"])
        experiment = "-".join(str(config[key]) for key in sorted(config) if key != "seed" and config[key] is not None)
        place = output / row["study"] / row["cluster"] / plain_name(experiment or "run")
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
        place = output / plain_name(_name(row))
        place.mkdir(parents=True)
        file = EventFile(place / file_name(started, "dataset", row["attempt"]), started)
        for time, entry in sorted(
            [*((point.time, point) for point in points), *((sample[0], sample) for sample in samples.get(attempt, ()))],
            key=lambda timed: timed[0],
        ):
            if isinstance(entry, _Point):
                file.scalar(entry.tag, time, entry.value, entry.step)
            else:
                file.machine(*entry)
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
    attempts: dict[tuple[str, str, str], list[tuple[Any, ...]]] = {}
    keys = zip(*(rows[name].tolist() for name in ("plan", "cell", "attempt")), strict=True)
    for key, values in zip(keys, zip(*(rows[name].tolist() for name in columns), strict=True), strict=True):
        attempts.setdefault(key, []).append(values)
    return attempts


def _mlflow(dataset: Path, where: str, report: Path | None = None, plans: Sequence[Path] = ()) -> int:
    artifacts = None
    # Faults are found before anything is written.
    if find_spec("mlflow") is None:
        raise ImportError(name="mlflow")
    agents, studies = agents_of(plans), set(load_table(dataset, "cells")["study"])
    if "://" in where:
        check_address(where)
    else:
        output = Path(where)
        output.mkdir(parents=True, exist_ok=True)
        where, artifacts = f"sqlite:///{output.resolve()}/mlflow.db", output / "artifacts"
    with refusals(where):
        return _tracked(dataset, Tracking(where, artifacts), agents, report, studies)


def _tracked(
    dataset: Path,
    tracking: Tracking,
    agents: Mapping[tuple[str, str], list[Path]],
    report: Path | None,
    studies: set[str],
) -> int:
    """Write the runs of a dataset into MLflow, and return the number of new ones."""
    count = 0
    for row, points in _runs(dataset):
        if row["outcome"] == "running":  # it may be sending its values itself
            continue
        metrics = {name: float(row[name]) for name in _METRICS if not pd.isna(row[name])}
        curves = _curves(points)
        # An attempt that is not the cell's newest has left no agents.
        files = agents.get((row["plan"], row["cell"]), []) if row["latest"] else []
        count += tracking.write(row, _name(row), metrics, curves, files)
        if report:
            tracking.add_report(row, report, studies)
    return count


def _curves(points: Iterable[_Point]) -> list[tuple[str, float, float, int]]:
    """Return metric, value, seconds and step of each point. Episodes that ended at one step are one point, as in live tracking."""
    curves: list[tuple[str, float, float, int]] = []
    ended: dict[int, list[_Point]] = {}
    for point in points:
        if point.kind == "train":
            ended.setdefault(point.step, []).append(point)
        else:
            curves.append((plain(point.tag), point.value, point.time, point.step))
    for step, some in ended.items():
        values = metrics_of_step([point.value for point in some], [point.length for point in some])
        curves += [(name, value, some[-1].time, step) for name, value in values.items()]
    return curves


KINDS: dict[str, Callable[[Path, Path], int]] = {
    "csv": _csv,
    "openrlbenchmark": _openrlbenchmark,
    "tensorboard": _tensorboard,
}
