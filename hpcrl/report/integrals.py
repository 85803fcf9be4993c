"""Values over the training of each run: integrals and means over time, use and updates per step, last returns, how constant memory is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from hpcrl.catalogue.registry import algorithms
from hpcrl.formats.runs import cores
from hpcrl.report.machines import ATTEMPT
from hpcrl.report.statistics import Values
from hpcrl.report.training_clock import Clocks, Key, TrainingClock, clocks, places_of

_LAST = 0.1  # of the environment steps
_LEARNING = ("update", "transfer")  # phases
_STEPPING = ("env_step", "fused")
Series = dict[Any, tuple[Values, Values]]  # times and values


def with_integrals(rows: pd.DataFrame, episodes: pd.DataFrame, samples: pd.DataFrame) -> pd.DataFrame:
    """Add columns to the attempts: values over training alone (:mod:`hpcrl.report.training_clock`), missing where nothing in training tells them.

    For `return`, `machine_cpu` and `machine_memory` (percent, first node): `..._mean` over time, and `..._integral`, which is
    the mean times the training time. `machine_cpu_per_step`, `machine_memory_per_step`: the integral per environment step.
    `own_cores`: the cores in use by the job on all of its nodes. `cpu_per_step`: its CPU seconds per step. `memory_range`,
    `machine_memory_range`: the maximum of the job's own or of the machine's memory, divided by the minimum. `time_per_step`: seconds.
    The means of a requeued cell are those of its last attempt.
    """
    known = clocks(rows, episodes)
    returns = episodes[(episodes["name"] == "return") & (episodes["kind"] == "train")]
    first = samples[samples["rank"] == 0]
    cpu, memory, own = (_by_run(first, name) for name in ("machine_cpu_percent", "machine_memory_percent", "pss"))
    columns = {
        "return_mean": _of_clocks(known, _by_run(returns, "value"), TrainingClock.mean),
        "machine_cpu_mean": _of_clocks(known, cpu, _of_intervals),
        "machine_memory_mean": _of_clocks(known, memory, TrainingClock.level),
        "memory_range": _of_clocks(known, own, _range),
        "machine_memory_range": _of_clocks(known, memory, _range),
        "own_cores": _own_cores(known, samples),
    }
    rows = rows.assign(**{name: _of_each(rows, values) for name, values in columns.items()})
    # A node without a record would seem to use nothing.
    complete = ~(rows["records"] < rows["tasks"].fillna(1))
    time = rows["training_time"].astype(float)
    step = (time / rows["steps"].where(rows["steps"] > 0)).astype(float)
    rows = rows.assign(time_per_step=step, own_cores=rows["own_cores"].where(complete))
    return rows.assign(
        cpu_per_step=step * rows["own_cores"],
        **{f"{name}_integral": time * rows[f"{name}_mean"] for name in ("return", "machine_cpu", "machine_memory")},
        **{f"{name}_per_step": step * rows[f"{name}_mean"] for name in ("machine_cpu", "machine_memory")},
    )


def with_shares(rows: pd.DataFrame) -> pd.DataFrame:
    """Add `own_share` to attempts with `own_cores`: the share of the cell's cores that the job uses in training."""
    return rows.assign(own_share=rows["own_cores"] / cores(rows).astype(float))


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


def with_stepping(rows: pd.DataFrame, phases: pd.DataFrame) -> pd.DataFrame:
    """Add `stepping_time`: seconds in which the environments step, on the first rank.

    It is missing for a fused program that also learns, because its steps have no phase of their own, and for a requeued cell, whose record
    has only the rest of its times.
    """
    if phases.empty:
        return rows.assign(stepping_time=np.nan)
    own = phases[(phases["rank"] == 0) & phases["phase"].isin(_STEPPING)]
    seconds = pd.Series(_of_each(rows, own.groupby(ATTEMPT, observed=True)["seconds"].sum().to_dict()), rows.index)
    steps_only = [name for name, algorithm in algorithms().items() if not algorithm.learns]
    learns = (rows["execution"] == "fused") & ~rows["workload"].isin(steps_only)
    return rows.assign(stepping_time=seconds.mask(learns | rows["resumed_step"].notna()))


def _of_each(rows: pd.DataFrame, values: Mapping[Any, float]) -> Values:
    return np.array([values.get(key, np.nan) for key in rows[ATTEMPT].itertuples(index=False, name=None)], float)


def _by_run(table: pd.DataFrame, column: str) -> Series:
    """Return times and values of each run, in the order of time."""
    known = table[table[column].notna()].sort_values("time", kind="stable")
    return {
        key: (group["time"].to_numpy(float), group[column].to_numpy(float))
        for key, group in known.groupby(ATTEMPT, observed=True)
    }


def _of_clocks(
    known: Clocks, series: Series, value: Callable[[TrainingClock, Values, Values], float]
) -> dict[Key, float]:
    """Return a value of each run that has a clock, from its times and values."""
    return {key: value(known[key], *points) for key, points in series.items() if key in known}


def _of_intervals(clock: TrainingClock, time: Values, value: Values) -> float:
    """Return the mean of values each of which is over the time since the one before."""
    bounds = np.concatenate([[0.0], time])
    return clock.rate(bounds, value * np.diff(bounds))


def _range(clock: TrainingClock, time: Values, value: Values) -> float:
    value = value[clock.within(time)]
    return float(value.max() / value.min()) if len(value) > 1 and value.min() > 0 else np.nan


def _own_cores(known: Clocks, samples: pd.DataFrame) -> dict[Key, float]:
    """Return the CPU seconds per second of each run, summed over its nodes, each of which has the samples of its first rank."""
    columns = {name: samples[name].to_numpy(float) for name in ("time", "unix_time", "cpu_seconds", "rank")}
    cores: dict[Key, float] = {}
    for key, places in places_of(samples).items():
        if (clock := known.get(key)) is None:
            continue
        own = {name: values[places] for name, values in columns.items()}
        # Each rank's record has its own start. That of the first rank's is the clock's.
        starts = {rank: _start(own, rank) for rank in np.unique(own["rank"]).tolist()}
        cores[key] = sum(_cores(clock, own, rank, starts[rank] - starts.get(0, np.nan)) for rank in starts)
    return cores


def _start(own: Mapping[str, Values], rank: float) -> float:
    """Return the wall clock at the start of a rank's record."""
    return float(np.median((own["unix_time"] - own["time"])[own["rank"] == rank]))


def _cores(clock: TrainingClock, own: Mapping[str, Values], rank: float, later: float) -> float:
    """Return the growth of a rank's CPU seconds per second of training; `later` is by how much its record began after the first rank's."""
    known = (own["rank"] == rank) & np.isfinite(own["cpu_seconds"])
    time, seconds = own["time"][known], own["cpu_seconds"][known]
    order = np.argsort(time, kind="stable")
    return clock.rate(time[order] + (later if rank else 0.0), np.diff(seconds[order])) if known.any() else np.nan
