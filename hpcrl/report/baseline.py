"""Compare a dataset with an older one: which results became slower, larger or worse beyond the noise between seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from hpcrl.report.groups import KEYS
from hpcrl.report.statistics import CONFIDENCE, Estimate, Values, holm, least_p, mann_whitney, ratio, runs_needed

# column -> its display name, and whether more is better
MEASURES = {
    "training_time": ("training time", False),
    "compile_time": ("compile time", False),
    "memory": ("memory", False),
    "final_score": ("final score", True),
}
SMALL = 0.02  # smaller changes are not reported, even if they are significant
REGRESSION, IMPROVEMENT, NOTHING_SHOWN, NOT_JUDGED = (
    "regression",
    "improvement",
    "no change shown",
    "cannot be judged",
)


@dataclass(frozen=True)
class Change:
    """One measure of one line of the comparison.

    Args:
        estimate: the change relative to the old value, with its interval for times and memory, and the p value of its test.
        runs: number of runs in the new and the old dataset.
        verdict: one of the words above; set when all changes of a report are judged together.
        why: the reason why it cannot be judged.
    """

    study: str
    line: str
    measure: str
    estimate: Estimate
    more_is_better: bool
    runs: tuple[int, int]
    verdict: str = NOT_JUDGED
    why: str = ""

    def __str__(self) -> str:
        value, p = self.estimate.value, self.estimate.p
        return f"{self.line}: {self.measure} {100 * value:+.1f} %" + (
            f" ({self.interval()})" if self.estimate.low is not None else f" (p = {p:.2g})" if p is not None else ""
        )

    def interval(self) -> str:
        low, high = self.estimate.low, self.estimate.high
        return "" if low is None or high is None else f"95 % interval {100 * low:+.1f} to {100 * high:+.1f} %"


def compare(new: pd.DataFrame, old: pd.DataFrame) -> list[Change]:
    """Compare the lines that two datasets share, on completed cells; :func:`judge` then gives the verdicts.

    Args:
        new, old: attempts with the columns of `with_groups`.
    """
    changes = []
    before = dict(list(_completed(old).groupby(list(KEYS), sort=True)))
    for key, group in _completed(new).groupby(list(KEYS), sort=True):
        if key not in before:
            continue
        for column, (name, more_is_better) in MEASURES.items():
            over, under = (_values(rows, column) for rows in (group, before[key]))
            if len(over) == 0 or len(under) == 0 or not (over.any() and under.any()):
                continue
            estimate = _score_change(over, under) if more_is_better else _relative(over, under)
            line = ", ".join(map(str, key))
            changes.append(Change(str(key[0]), line, name, estimate, more_is_better, (len(over), len(under))))
    return changes


def judge(changes: Sequence[Change]) -> list[Change]:
    """Return the changes with their verdicts, regressions first. The tests of a report are corrected for their number (Holm 1979)."""
    tested = [change for change in changes if change.estimate.p is not None]
    stands = holm([change.estimate.p for change in tested if change.estimate.p is not None])
    judged = [replace(change, why="one seed") for change in changes if change.estimate.p is None]
    for change, stand in zip(tested, stands, strict=True):
        if change.measure == MEASURES["final_score"][0] and least_p(*change.runs) > (1 - CONFIDENCE) / len(tested):
            needed = runs_needed(len(tested))
            why = (
                f"at least {needed} seeds are needed for {len(tested)} comparisons"
                if needed
                else "too many comparisons"
            )
            judged.append(replace(change, why=why))
        elif not stand or abs(change.estimate.value) < SMALL:
            judged.append(replace(change, verdict=NOTHING_SHOWN))
        else:
            better = (change.estimate.value > 0) == change.more_is_better
            judged.append(replace(change, verdict=IMPROVEMENT if better else REGRESSION))
    order = (REGRESSION, IMPROVEMENT, NOTHING_SHOWN, NOT_JUDGED)
    return sorted(judged, key=lambda change: order.index(change.verdict))


def _completed(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["outcome"] == "completed"]


def _values(rows: pd.DataFrame, column: str) -> Values:
    return np.asarray(rows[column].dropna().to_numpy(float))


def _relative(over: Values, under: Values) -> Estimate:
    """Return the relative change of positive values."""
    if min(over.min(), under.min()) <= 0:  # such as compile times of cells without compiling
        return Estimate(float(over.mean() / under.mean()) - 1, None, None)
    estimate = ratio(over, under)
    if estimate.low is None or estimate.high is None:
        return replace(estimate, value=estimate.value - 1)
    return replace(estimate, value=estimate.value - 1, low=estimate.low - 1, high=estimate.high - 1)


def _score_change(over: Values, under: Values) -> Estimate:
    """Return the relative change of the median score. An increase is positive for negative scores, too."""
    before = float(np.median(under))
    value = (float(np.median(over)) - before) / (abs(before) or 1.0)
    judged = len(over) > 1 and len(under) > 1
    return Estimate(value, None, None, p=mann_whitney(over, under) if judged else None)
