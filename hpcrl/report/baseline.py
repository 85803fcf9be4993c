"""One dataset against an older one: what became slower, larger or worse beyond the noise between seeds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from hpcrl.report.groups import KEYS
from hpcrl.report.statistics import Estimate, relative_change

# column -> what it is called, and whether more of it is better
MEASURES = {
    "training_time": ("training time", False),
    "compile_time": ("compile time", False),
    "rss_peak": ("memory", False),
    "final_score": ("final score", True),
}
SMALL = 0.02  # a change of less than this part is not spoken of, however sure it is


@dataclass(frozen=True)
class Change:
    """One measure of one line of the comparison: the change of its mean, as a part of the old one, with its interval."""

    line: str
    measure: str
    estimate: Estimate
    verdict: str  # "regression", "improvement", "no change shown"

    def __str__(self) -> str:
        value, low, high = self.estimate.value, self.estimate.low, self.estimate.high
        sure = "" if low is None or high is None else f" (95 % interval {100 * low:+.1f} to {100 * high:+.1f} %)"
        return f"{self.line}: {self.measure} {100 * value:+.1f} %{sure}"


def compare(new: pd.DataFrame, old: pd.DataFrame) -> list[Change]:
    """Compare the lines that two datasets share, on completed cells; regressions come first.

    Args:
        new, old: attempts with the columns of `with_groups`.
    """
    changes = []
    before = dict(list(_completed(old).groupby(list(KEYS), sort=True)))
    for key, group in _completed(new).groupby(list(KEYS), sort=True):
        if key not in before:
            continue
        for column, (name, more_is_better) in MEASURES.items():
            over, under = (_values(each, column) for each in (group, before[key]))
            if len(over) == 0 or len(under) == 0 or under.mean() == 0:
                continue
            estimate = relative_change(over, under)
            changes.append(Change(", ".join(map(str, key)), name, estimate, _verdict(estimate, more_is_better)))
    order = {"regression": 0, "improvement": 1, "no change shown": 2}
    return sorted(changes, key=lambda change: order[change.verdict])


def _completed(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["outcome"] == "completed"]


def _values(rows: pd.DataFrame, column: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.asarray(rows[column].dropna().to_numpy(float))


def _verdict(estimate: Estimate, more_is_better: bool) -> str:
    if estimate.low is None or estimate.high is None or abs(estimate.value) < SMALL:
        return "no change shown"
    if estimate.low <= 0 <= estimate.high:
        return "no change shown"
    return "improvement" if (estimate.value > 0) == more_is_better else "regression"
