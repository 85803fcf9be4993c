"""Series over the course of a run, over seeds: returns, evaluations, use of processors and memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pandas as pd

from hpcrl.report.design import at_least, counted, enumerated
from hpcrl.report.groups import KEYS
from hpcrl.report.statistics import Values, interval_of_median

By = Literal["episode", "step", "time"]
_NAMES = [*KEYS, "line", "colour", "hex", "dash", "apart"]
_COLUMNS = ["x", "median", "low", "high", "seeds", "level", *_NAMES]


def returns(
    rows: pd.DataFrame, episodes: pd.DataFrame, by: By, points: int = 120, window: int = 20, name: str = "return"
) -> pd.DataFrame:
    """Return training returns against `by`, as :func:`banded` does; each seed is averaged over the last `window` episodes.

    Time is counted from the start of the record.

    Args:
        name: name of the reported value, for a command that reports no returns.
    """
    # Each rank of a command may report a value, and the score is the first one's.
    reported = (episodes["kind"] == "value") & (episodes["rank"] == 0)
    wanted = episodes[(episodes["name"] == name) & ((episodes["kind"] == "train") | reported)]
    rows = rows if by == "step" else whole(rows)

    def series(seed: pd.DataFrame) -> tuple[Values, Values]:
        ordered = seed.sort_values("time")
        return _positions(ordered, by), ordered["value"].rolling(window, min_periods=1).mean().to_numpy(float)

    return banded(rows, wanted, series, points)


def evaluations(rows: pd.DataFrame, episodes: pd.DataFrame, by: By, points: int = 60) -> pd.DataFrame:
    """Return evaluations of the greedy policy against `by`, as :func:`banded` does."""
    wanted = episodes[(episodes["name"] == "return") & (episodes["kind"] == "evaluation")]
    rows = rows if by == "step" else whole(rows)

    def series(seed: pd.DataFrame) -> tuple[Values, Values]:
        ordered = seed.sort_values("time")
        return _positions(ordered, by), ordered["value"].to_numpy(float)

    return banded(rows, wanted, series, points)


def _positions(ordered: pd.DataFrame, by: By) -> Values:
    if by == "episode":
        return np.arange(1.0, len(ordered) + 1)
    if by == "step":
        return np.asarray(ordered["step"].to_numpy(float))
    return np.asarray(ordered["time"].to_numpy(float))


def usage(rows: pd.DataFrame, samples: pd.DataFrame, what: str) -> pd.DataFrame:
    """Return the job's use of a resource against time, as :func:`banded` does.

    Args:
        what: ``cpu`` (its own cores in use), ``memory`` (its own, GiB), ``gpu`` (utilisation of its GPUs, percent), or a
            column of the samples with values of the machine.
    """
    column = {"cpu": "cpu_seconds", "memory": "pss", "gpu": "gpu_percent"}.get(what, what)
    # A job with many processes is not measured in every sample, and most jobs have no GPU.
    first = samples[(samples["rank"] == 0) & samples[column].notna()]

    def series(seed: pd.DataFrame) -> tuple[Values, Values]:
        ordered = seed.sort_values("time")
        x, y = ordered["time"].to_numpy(float), ordered[column].to_numpy(float)
        if what == "memory":
            return x, y / 1024**3
        if what != "cpu":
            return x, y
        apart = max(1, len(x) // 60)  # differences over a second are mostly noise
        return x[apart:], (y[apart:] - y[:-apart]) / np.maximum(x[apart:] - x[:-apart], 1e-9)

    return banded(whole(rows), first, series)


def whole(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the attempts whose records are of the whole run. That of a requeued cell begins anew: only its steps go on."""
    return rows[rows["resumed_step"].isna()]


def left_out(rows: pd.DataFrame) -> str:
    """Say how many attempts :func:`whole` leaves out; "" if none."""
    count = len(rows) - len(whole(rows))
    if not count:
        return ""
    return f" Without {counted(count, 'requeued cell')}: the record of the last attempt is not of the whole run."


def banded(
    rows: pd.DataFrame,
    table: pd.DataFrame,
    series: Callable[[pd.DataFrame], tuple[Values, Values]],
    points: int = 120,
) -> pd.DataFrame:
    """Return, for each line of the comparison, the median over seeds of a series, with its interval.

    The series are read on a common grid that ends at the end of the shortest seed of the line, so that every median is over
    the same seeds. At each point the interval uses order statistics: see `statistics.median`.

    Args:
        rows: attempts with the columns of `with_groups`, and `line`.
        series: gives x and y of one seed from its rows of `table`.
    """
    keys = ["plan", "cell", "attempt"]
    named = table.merge(rows[[*keys, *_NAMES]], on=keys)
    out = []
    groups = named.groupby(_NAMES, sort=True)
    points = min(points, max(20, 4_000 // max(1, groups.ngroups)))  # with many lines, more points do not help
    for group_key, group in groups:
        curves = []
        for _, seed in group.groupby(keys, sort=True):
            x, y = series(seed)
            good = np.isfinite(x) & np.isfinite(y)
            if good.sum() > 1:
                curves.append((x[good], y[good]))
        if not curves:
            continue
        start, end = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
        if end <= start:
            continue
        grid = np.linspace(start, end, points)
        values = np.sort(np.array([np.interp(grid, x, y) for x, y in curves]), axis=0)
        cut, level = interval_of_median(len(curves))
        frame = pd.DataFrame(
            {"x": grid, "median": np.median(values, 0), "low": values[cut], "high": values[len(curves) - 1 - cut]}
        ).assign(seeds=len(curves), level=level)
        for name, value in zip(_NAMES, group_key, strict=True):
            frame[name] = str(value)
        out.append(frame)
    return pd.concat(out, ignore_index=True)[_COLUMNS] if out else pd.DataFrame(columns=_COLUMNS)


def band_in_words(data: pd.DataFrame) -> str:
    """Explain the lines and bands of :func:`banded`."""
    several = data["seeds"] > 1
    if not several.any():
        return "Lines are single seeds."
    level: Any = data.loc[several, "level"].min()
    text = (
        "Lines are medians over seeds. Bands are intervals of order statistics, which at each point contain the median of all "
        f"seeds in {at_least(level)} of cases or more. A line covers what all of its seeds cover."
    )
    return text if several.all() else f"{text} Lines of one seed have no band."


def equal_lines(data: pd.DataFrame) -> str:
    """Say which lines of :func:`banded` are equal in all points, so that one hides the others; "" if none are."""
    told: dict[str, None] = {}
    for _, panel in data.groupby(["cluster", "where", "apart"], sort=False):
        alike: dict[bytes, list[str]] = {}
        for name, line in panel.groupby("what", sort=False):
            alike.setdefault(line[["x", "median", "low", "high"]].to_numpy().tobytes(), []).append(str(name))
        told |= dict.fromkeys(enumerated(names) for names in alike.values() if len(names) > 1)
    return f" One line hides the others where all their values are equal: {'; '.join(told)}." if told else ""
