"""Values over the training of each run: integrals and means over time, use and updates per step, last returns, how constant memory is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from hpcrl.report.machines import ATTEMPT
from hpcrl.report.statistics import Values

# name of a value -> column of the samples
_SAMPLED = {"machine_cpu": "machine_cpu_percent", "machine_memory": "machine_memory_percent"}
_LAST = 0.1  # of the environment steps
_LEARNING = ("update", "transfer")  # phases


def since_training(rows: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Return the part of a table that was recorded in training, with `time` counted from its start.

    Args:
        rows: attempts. table: `episodes` or `samples` of the dataset.
    """
    starts = rows[ATTEMPT].assign(start=rows["setup_time"] + rows["compile_time"])
    merged = table.merge(starts, on=ATTEMPT)
    merged = merged.assign(time=merged["time"] - merged["start"])
    return merged[merged["time"] >= 0].drop(columns="start")


def with_integrals(rows: pd.DataFrame, episodes: pd.DataFrame, samples: pd.DataFrame) -> pd.DataFrame:
    """Add columns to the attempts of built-in training; a value is missing where two points in time do not exist.

    For `return`, `machine_cpu` and `machine_memory` (percent, first node): `..._integral` (value times seconds, trapezoids)
    and `..._mean` (the integral divided by its time). `machine_cpu_per_step`, `machine_memory_per_step`: the mean, times the
    training time, per environment step. `cpu_per_step`: the job's own CPU seconds per step. `memory_range`,
    `machine_memory_range`: the maximum of the job's own or of the machine's memory, divided by the minimum. `time_per_step`: seconds.
    """
    returns = episodes[(episodes["name"] == "return") & (episodes["kind"] == "train")]
    curves = {"return": _by_run(since_training(rows, returns), "value")}
    first = since_training(rows, samples[samples["rank"] == 0])
    curves |= {name: _by_run(first, column) for name, column in _SAMPLED.items()}
    columns: dict[str, list[float]] = {}
    keys = list(rows[ATTEMPT].itertuples(index=False, name=None))
    for name, series in curves.items():
        known = {key: integral(*points) for key, points in series.items()}
        columns[f"{name}_integral"] = [known.get(key, (np.nan, np.nan))[0] for key in keys]
        columns[f"{name}_mean"] = [known.get(key, (np.nan, np.nan))[1] for key in keys]
    for name, series in (("memory_range", _by_run(first, "pss")), ("machine_memory_range", curves["machine_memory"])):
        columns[name] = [_range(series.get(key)) for key in keys]
    cores = {key: _rate(*points) for key, points in _by_run(first, "cpu_seconds").items()}
    rows = rows.assign(**columns)
    step = (rows["training_time"] / rows["steps"].where(rows["steps"] > 0)).astype(float)
    return rows.assign(
        time_per_step=step,
        cpu_per_step=step * [cores.get(key, np.nan) for key in keys],
        **{f"{name}_per_step": step * rows[f"{name}_mean"] for name in _SAMPLED},
    )


def with_last_returns(rows: pd.DataFrame, episodes: pd.DataFrame) -> pd.DataFrame:
    """Add `last_return`: the mean return of the training episodes that ended in the last tenth of a run's steps; missing if none did.

    They have the noise of exploring. An evaluation takes the mean actions: on HalfCheetah those of an untrained policy score near 0, and its noise -280.
    """
    returns = episodes[(episodes["name"] == "return") & (episodes["kind"] == "train")]
    known = returns.merge(rows[[*ATTEMPT, "steps"]], on=ATTEMPT)
    late = known[known["step"] > (1 - _LAST) * known["steps"]]
    means = late.groupby(ATTEMPT, observed=True)["value"].mean().to_dict()
    return rows.assign(last_return=_of_each(rows, means))


def with_updates(rows: pd.DataFrame, phases: pd.DataFrame) -> pd.DataFrame:
    """Add `update_per_step`: seconds of updates, and of transfers to the device before them, per environment step, on the first rank.

    It is missing if they are in no phase of their own, and for a requeued cell, whose record has only the rest of its times.
    """
    if phases.empty:
        return rows.assign(update_per_step=np.nan)
    own = phases[(phases["rank"] == 0) & phases["phase"].isin(_LEARNING)]
    seconds = own.groupby(ATTEMPT, observed=True)["seconds"].sum().to_dict()
    steps = rows["steps"].where((rows["steps"] > 0) & rows["resumed_step"].isna())
    return rows.assign(update_per_step=_of_each(rows, seconds) / steps.to_numpy(float))


def integral(time: Values, value: Values) -> tuple[float, float]:
    """Return the integral of a series over time, and its mean over time: the integral divided by the time."""
    length = float(time[-1] - time[0]) if len(time) > 1 else 0.0
    if length <= 0:
        return np.nan, np.nan
    whole = float(np.trapezoid(value, time))
    return whole, whole / length


def _of_each(rows: pd.DataFrame, values: dict[Any, float]) -> Values:
    return np.array([values.get(key, np.nan) for key in rows[ATTEMPT].itertuples(index=False, name=None)], float)


def _by_run(table: pd.DataFrame, column: str) -> dict[Any, tuple[Values, Values]]:
    """Return times and values of each run, in the order of time."""
    known = table[table[column].notna()].sort_values("time", kind="stable")
    return {
        key: (group["time"].to_numpy(float), group[column].to_numpy(float))
        for key, group in known.groupby(ATTEMPT, observed=True)
    }


def _range(series: tuple[Values, Values] | None) -> float:
    if series is None or len(series[1]) < 2 or series[1].min() <= 0:
        return np.nan
    return float(series[1].max() / series[1].min())


def _rate(time: Values, value: Values) -> float:
    """Return the growth of a counter per second."""
    return float((value[-1] - value[0]) / (time[-1] - time[0])) if len(time) > 1 and time[-1] > time[0] else np.nan
