"""The training clock of each run: how long it had trained at any time of its record, without evaluations and all before and after training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hpcrl.report.machines import ATTEMPT
from hpcrl.report.statistics import Values

Key = tuple[str, str, str]  # plan, cell, attempt
_OPEN = 1e9  # seconds: the end of a training that may have gone on
# A value over an interval, such as CPU use since the sample before, is of training if so much of the interval is.
_MOSTLY = 0.9


@dataclass(frozen=True)
class TrainingClock:
    """The training clock of one run.

    Args:
        bounds: (2 × stretches,) begin and end of each stretch of training, in seconds since the start of the record.
        includes_evaluations: whether the stretches have evaluations in them, because a dataset of older records lacks their times.
    """

    bounds: Values
    includes_evaluations: bool = False
    trained: Values = field(init=False, repr=False)  # seconds at each bound

    def __post_init__(self) -> None:
        gaps = np.diff(self.bounds)
        gaps[1::2] = 0.0
        object.__setattr__(self, "trained", np.concatenate([[0.0], np.cumsum(gaps)]))

    @property
    def total(self) -> float | None:
        """The seconds of training; None if its end is not known."""
        return float(self.trained[-1]) if self.bounds[-1] < _OPEN else None

    def at(self, time: Values) -> Values:
        """Return the seconds of training until some times of the record."""
        return np.interp(time, self.bounds, self.trained)

    def within(self, time: Values) -> NDArray[np.bool_]:
        """Tell which times are in training; both ends of a stretch are."""
        before, after = (np.searchsorted(self.bounds, time, side=side) for side in ("left", "right"))
        inside: NDArray[np.bool_] = (before % 2 == 1) | (after % 2 == 1)
        return inside

    def rate(self, time: Values, amount: Values) -> float:
        """Return amount per second over the intervals that were training; NaN if none was.

        Args:
            time: (intervals + 1,) the bounds of the intervals. amount: (intervals,) what each of them adds.
        """
        length = np.diff(time)
        good = (length > 0) & (np.diff(self.at(time)) >= _MOSTLY * length)
        return float(amount[good].sum() / length[good].sum()) if good.any() else np.nan

    def level(self, time: Values, value: Values) -> float:
        """Return the mean over training of a value that is known at some times; each counts for the training since the one before."""
        weight = np.diff(self.at(time), prepend=0.0) * self.within(time)
        return float((weight * value).sum() / weight.sum()) if weight.sum() > 0 else np.nan

    def mean(self, time: Values, value: Values) -> float:
        """Return the mean over training of a curve: trapezoids between its points in training, the first and the last held to its ends."""
        good = self.within(time)
        if not good.any():
            return np.nan
        at, value = self.at(time[good]), value[good]
        end = float(at[-1]) if self.total is None else self.total
        if end <= 0:
            return np.nan
        whole = np.trapezoid(np.concatenate([value[:1], value, value[-1:]]), np.concatenate([[0.0], at, [end]]))
        return float(whole) / end


Clocks = Mapping[Key, TrainingClock]


def clocks(rows: pd.DataFrame, episodes: pd.DataFrame) -> Clocks:
    """Return the training clock of each attempt, but for those whose first step is not known. A command trains from start to end.

    Args:
        rows: attempts. episodes: table of the dataset.
    """
    evaluations = episodes[(episodes["name"] == "return") & (episodes["kind"] == "evaluation")].sort_values("time")
    pauses = {
        key: group[["began", "seconds"]].to_numpy(float)
        for key, group in evaluations.groupby(ATTEMPT, observed=True, sort=False)
    }
    start = (rows["setup_time"] + rows["compile_time"]).astype(float).mask(rows["workload"] == "command", 0.0)
    # A requeued cell's times include its earlier attempts.
    length = (rows["training_time"] + rows["evaluation_time"].fillna(0.0)).astype(float)
    end = (start + length.mask(rows["resumed_step"].notna() | (rows["workload"] == "command"))).fillna(_OPEN)
    keys = rows[ATTEMPT].itertuples(index=False, name=None)
    completed = rows["outcome"] == "completed"
    return {
        key: _clock(first, last, pauses.get(key, np.empty((0, 2))), done)
        for key, first, last, done in zip(keys, start, end, completed, strict=True)
        if not np.isnan(first)
    }


def _clock(start: float, end: float, pauses: Values, completed: bool) -> TrainingClock:
    """Make a clock from the begin and the duration of each evaluation. A training that completes ends with one."""
    if np.isnan(pauses[:, 0]).any():
        return TrainingClock(np.array([start, end]), includes_evaluations=True)
    bounds = np.concatenate([[start], np.column_stack([pauses[:, 0], pauses.sum(axis=1)]).ravel(), [end]])
    if completed and len(pauses):
        bounds = bounds[:-2]
    # The duration of an evaluation in which the record ends is not known.
    return TrainingClock(np.maximum.accumulate(np.nan_to_num(bounds, nan=_OPEN)))


def places_of(table: pd.DataFrame) -> dict[Key, NDArray[np.int64]]:
    """Return the places of the rows of each attempt in a table of the dataset."""
    return {key: places for key, places in table.groupby(ATTEMPT, observed=True).indices.items()}  # type: ignore[misc]


def in_training(clocks: Clocks, table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a table of the dataset that were recorded in training, with `time` as training time."""
    time = table["time"].to_numpy(float)
    trained = np.full(len(time), np.nan)
    for key, places in places_of(table).items():
        if clock := clocks.get(key):
            own = time[places]
            trained[places] = np.where(clock.within(own), clock.at(own), np.nan)
    return table.assign(time=trained)[~np.isnan(trained)]


def of_clocks(rows: pd.DataFrame, clocks: Clocks) -> str:
    """Say in how many runs training includes evaluations, because their records do not tell them apart; "" if in none."""
    keys = list(rows[ATTEMPT].itertuples(index=False, name=None))
    mixed = sum(clock.includes_evaluations for key in keys if (clock := clocks.get(key)))
    if not mixed:
        return ""
    which = f"{mixed} of {len(keys)} runs have" if mixed < len(keys) else "The runs have"
    return f" {which} evaluations in these values, because their records do not tell when these began."
