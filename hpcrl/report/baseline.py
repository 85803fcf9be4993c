"""Compare a dataset with an older one: which results became slower, larger or worse beyond the noise between seeds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from hpcrl.errors import count
from hpcrl.report.groups import KEYS
from hpcrl.report.statistics import (
    CONFIDENCE,
    Estimate,
    Values,
    detectable,
    holm,
    least_p,
    mann_whitney,
    ratio,
    runs_needed,
    runs_to_detect,
)

SCORE = "final_score"
# column -> its display name
MEASURES = {
    "training_time": "training time",
    "compile_time": "compile time",
    "memory": "memory",
    SCORE: "final score",
}
SMALL = 0.02  # smaller changes are not reported, even if they are significant
LARGE = 0.10  # a comparison that would miss such a change of a time or of memory says nothing
_HOST = re.compile(r", host .*$")  # in the name of a machine without Slurm
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
        column: the column of :data:`MEASURES`; `measure` is its name in words.
        estimate: the change relative to the old value, with its interval for times and memory, and the p value of its test.
        new, old: the values of the runs.
        verdict: one of the words above; set when all changes of a report are judged together.
        why: the reason why it cannot be judged, if there is one.
    """

    study: str
    line: str
    column: str
    measure: str
    estimate: Estimate
    more_is_better: bool
    new: Values
    old: Values
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


def compare(new: pd.DataFrame, old: pd.DataFrame, more_is_better: bool = True) -> list[Change]:
    """Compare the lines that two datasets share, on completed cells; :func:`judge` then gives the verdicts.

    Times and memory on two kinds of machines cannot be judged: their difference may be that of the machines. Hosts of one kind are equal here.

    Args:
        new, old: attempts with the columns of `with_groups`.
        more_is_better: whether a higher score is better.
    """
    changes = []
    before = dict(list(_completed(old).groupby(list(KEYS), sort=True)))
    for key, group in _completed(new).groupby(list(KEYS), sort=True):
        if key not in before:
            continue
        here, there = (_machines(rows) for rows in (group, before[key]))
        elsewhere = "" if here == there else f"it ran on another kind of machine (before: {there}; now: {here})"
        for column, name in MEASURES.items():
            over, under = (_values(rows, column) for rows in (group, before[key]))
            if len(over) == 0 or len(under) == 0 or not (over.any() and under.any()):
                continue
            estimate = _score_change(over, under) if column == SCORE else _relative(over, under)
            why = elsewhere if column != SCORE else ""
            if why:
                estimate = Estimate(estimate.value, None, None)
            better = more_is_better and column == SCORE
            line = ", ".join(map(str, key))
            changes.append(Change(str(key[0]), line, column, name, estimate, better, over, under, why=why))
    return changes


def judge(changes: Sequence[Change]) -> list[Change]:
    """Return the changes with their verdicts, regressions first. The tests of a report are corrected for their number (Holm 1979)."""
    tested = [change for change in changes if change.estimate.p is not None]
    stands = holm([change.estimate.p for change in tested if change.estimate.p is not None])
    judged = [replace(change, why=change.why or _untested(change)) for change in changes if change.estimate.p is None]
    for change, stand in zip(tested, stands, strict=True):
        if stand and abs(change.estimate.value) >= SMALL:
            better = (change.estimate.value > 0) == change.more_is_better
            judged.append(replace(change, verdict=IMPROVEMENT if better else REGRESSION))
        elif not stand and (why := _missed(change, len(tested))):
            judged.append(replace(change, why=why))
        else:
            judged.append(replace(change, verdict=NOTHING_SHOWN))
    order = (REGRESSION, IMPROVEMENT, NOTHING_SHOWN, NOT_JUDGED)
    return sorted(judged, key=lambda change: order.index(change.verdict))


def _untested(change: Change) -> str:
    few = min(len(change.new), len(change.old))
    return "one seed: at least 2 seeds are needed" if few < 2 else f"some {change.measure} is 0 or negative"


def _missed(change: Change, comparisons: int) -> str:
    """Say how many seeds could show a change that these could not; "" if they could."""
    among = f"for {count(comparisons, 'comparison')}"
    if change.column == SCORE:
        if least_p(len(change.new), len(change.old)) <= (1 - CONFIDENCE) / comparisons:
            return ""
        needed = runs_needed(comparisons)
        return f"at least {needed} seeds are needed {among}" if needed else "too many comparisons"
    if detectable(change.new, change.old, comparisons) <= 1 + LARGE:
        return ""
    needed = runs_to_detect(change.new, change.old, 1 + LARGE, comparisons)
    large = f"a change of {100 * LARGE:.0f} %"
    return f"about {needed} seeds are needed to show {large} {among}" if needed else f"too noisy to show {large}"


def _completed(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["outcome"] == "completed"]


def _machines(rows: pd.DataFrame) -> str:
    return "; ".join(sorted({_HOST.sub("", name) or "unknown" for name in rows["machine"]}))


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
