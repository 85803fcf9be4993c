"""Cells that differ only in their seed, as one line of the comparison."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from hpcrl.formats.runs import goal_wall_time
from hpcrl.report.statistics import Values, median

# Columns that name a line of the comparison.
KEYS = ("study", "cluster", "what", "where")


def with_groups(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the newest attempt of each cell with `what` (configuration), `where` (resources), `colour`, `dash`.

    A cell is what it computes: one that several plans have run is one seed, not several, and its newest run counts.
    Also `repeats` (in how many plans it ran) and `threads`, of the whole machine.
    """
    rows = cells[cells["latest"].astype(bool)]
    keys = ["study", "cluster", "cell"]
    rows = rows.assign(repeats=rows.groupby(keys)["plan"].transform("size"))
    rows = (
        rows.sort_values("started", kind="stable", na_position="first").drop_duplicates(keys, keep="last").sort_index()
    )
    configs = [json.loads(text) for text in rows["config"]]
    rows["what"] = [_what(config) for config in configs]
    rows["where"] = [_where(dict(row)) for row in rows.to_dict("records")]
    rows["colour"] = [str(config.get("framework") or what) for config, what in zip(configs, rows["what"], strict=True)]
    threads = {text: json.loads(text).get("threads") for text in rows["hardware"].dropna().unique()}
    rows["threads"] = rows["hardware"].map(threads).astype(float)
    rows["dash"] = [str(config.get("execution") or "") for config in configs]
    return rows


def _what(config: dict[str, Any]) -> str:
    parts = []
    for key, value in config.items():
        if key != "seed" and value is not None:
            parts.append(str(value) if key in ("framework", "execution") else f"{key} {value}")
    order = {config.get("framework"): 0, config.get("execution"): 1}
    return " ".join(sorted(parts, key=lambda part: order.get(part, 2))) or "all cells"


def _where(row: Mapping[Any, Any]) -> str:
    tasks = int(row["tasks"]) if not pd.isna(row["tasks"]) else 1
    cores = f"{int(row['cpus'])} core{'s' if row['cpus'] > 1 else ''}"
    text = f"{tasks} × {cores}" if tasks > 1 else cores
    if row["gpus"]:
        kind = row["gpu_type"] if isinstance(row["gpu_type"], str) else f"GPU{'s' if row['gpus'] > 1 else ''}"
        text += f", {int(row['gpus'])} {kind}"
    if row["parallelism"] not in (None, "none") and isinstance(row["parallelism"], str):
        text += f", {row['parallelism']}"
    return text


@dataclass(frozen=True)
class Line:
    """One line of the comparison: means over seeds.

    Args:
        final_score: the median over seeds; `final_interval` holds the median of all seeds as often as `final_level` says.
    """

    study: str
    cluster: str
    what: str
    where: str
    cells: int
    completed: int
    final_score: float | None
    final_interval: tuple[float, float] | None
    final_level: float | None
    at_goal: int
    goal_step: float | None
    goal_time: float | None
    goal_wall_time: float | None
    training_time: float | None
    wall_time: float | None
    setup_time: float | None
    compile_time: float | None
    cpu: float | None
    rss: float | None
    gpu: float | None


def lines(rows: pd.DataFrame) -> list[Line]:
    """Summarise each group; times and steps to the goal are medians over the seeds that reached it.

    `training_time` (from the first step) and `wall_time` (from the record's start) are of completed cells: what a part
    of the training took would pass for the whole.
    """
    out = []
    for names, group in rows.groupby(list(KEYS), sort=True):
        study, cluster, what, where = (str(name) for name in names)
        final = group["final_score"].dropna().to_numpy(float)
        score = median(final) if len(final) else None
        whole = group[group["outcome"] == "completed"]
        out.append(
            Line(
                study=study,
                cluster=cluster,
                what=what,
                where=where,
                cells=len(group),
                completed=int((group["outcome"] == "completed").sum()),
                final_score=score.value if score else None,
                final_interval=(score.low, score.high)
                if score and score.low is not None and score.high is not None
                else None,
                final_level=score.level if score and score.low is not None else None,
                at_goal=int(group["goal_step"].notna().sum()),
                goal_step=_median(group["goal_step"]),
                goal_time=_median(group["goal_time"]),
                goal_wall_time=_median(goal_wall_time(group)),
                training_time=_mean(whole["training_time"]),
                wall_time=_mean(whole["wall_time"]),
                setup_time=_mean(group["setup_time"]),
                compile_time=_mean(group["compile_time"]),
                cpu=_mean(group["cpu_utilisation"] * 100),
                rss=_mean(group["rss_peak"]),
                gpu=_mean(group["gpu_percent"]),
            )
        )
    return out


def _mean(values: pd.Series[Any]) -> float | None:
    known = values.dropna().astype(float)
    return float(known.mean()) if len(known) else None


def _median(values: pd.Series[Any]) -> float | None:
    known = values.dropna().astype(float)
    return float(known.median()) if len(known) else None


def curves(rows: pd.DataFrame, episodes: pd.DataFrame, by: str, points: int = 120, window: int = 20) -> pd.DataFrame:
    """Return smoothed training returns against `by` (``episode`` or ``time``), as :func:`banded` does.

    Each seed's returns are averaged over the last `window` episodes.
    """
    wanted = episodes[(episodes["name"] == "return") & (episodes["kind"].isin(["train", "value"]))]

    def series(seed: pd.DataFrame) -> tuple[Values, Values]:
        ordered = seed.sort_values("time")
        x = np.arange(1.0, len(ordered) + 1) if by == "episode" else ordered["time"].to_numpy(float)
        return x, ordered["value"].rolling(window, min_periods=1).mean().to_numpy(float)

    return banded(rows, wanted, series, points)


def usage_curves(rows: pd.DataFrame, samples: pd.DataFrame, what: str) -> pd.DataFrame:
    """Return what a job used against time, as :func:`banded`.

    Args:
        what: ``cpu`` (its own cores in use), ``memory`` (its own, GiB) or ``gpu`` (utilisation of its GPUs, percent).
    """
    column = {"cpu": "cpu_seconds", "memory": "rss", "gpu": "gpu_percent"}[what]
    # A job of many processes is not looked at in every sample, and most have no GPU.
    first = samples[(samples["rank"] == 0) & samples[column].notna()]

    def series(seed: pd.DataFrame) -> tuple[Values, Values]:
        ordered = seed.sort_values("time")
        x, y = ordered["time"].to_numpy(float), ordered[column].to_numpy(float)
        if what == "memory":
            return x, y / 1024**3
        if what == "gpu":
            return x, y
        apart = max(1, len(x) // 60)  # differences over a second say little more than noise
        return x[apart:], (y[apart:] - y[:-apart]) / np.maximum(x[apart:] - x[:-apart], 1e-9)

    return banded(rows, first, series)


def banded(
    rows: pd.DataFrame,
    table: pd.DataFrame,
    series: Callable[[pd.DataFrame], tuple[Values, Values]],
    points: int = 120,
) -> pd.DataFrame:
    """Return mean, lowest and highest over seeds of one series for each seed, for each line of the comparison.

    The series are read off on a common grid that ends where the shortest seed of the line ends, so that no mean
    changes its seeds on the way.

    Args:
        series: gives x and y of one seed from its rows of `table`.
    """
    keys = ["plan", "cell", "attempt"]
    named = table.merge(rows[[*keys, *KEYS, "colour", "dash"]], on=keys)
    out = []
    groups = named.groupby([*KEYS, "colour", "dash"], sort=True)
    points = min(points, max(20, 4_000 // max(1, groups.ngroups)))  # many lines are told apart no better by more
    for group_key, group in groups:
        found = []
        for _, seed in group.groupby(keys, sort=True):
            x, y = series(seed)
            good = np.isfinite(x) & np.isfinite(y)
            if good.sum() > 1:
                found.append((x[good], y[good]))
        if not found:
            continue
        grid = np.linspace(max(x[0] for x, _ in found), min(x[-1] for x, _ in found), points)
        values = np.array([np.interp(grid, x, y) for x, y in found])
        frame = pd.DataFrame({"x": grid, "mean": values.mean(0), "low": values.min(0), "high": values.max(0)})
        for name, value in zip([*KEYS, "colour", "dash"], group_key, strict=True):
            frame[name] = str(value)
        out.append(frame.assign(seeds=len(found)))
    columns = ["x", "mean", "low", "high", *KEYS, "colour", "dash", "seeds"]
    return pd.concat(out, ignore_index=True) if out else pd.DataFrame(columns=columns)
