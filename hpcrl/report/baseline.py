"""Compare a dataset with an older one: which results became slower, larger or worse beyond the noise between seeds."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from hpcrl.errors import count
from hpcrl.formats.outcomes import FAILURES
from hpcrl.report.design import in_short
from hpcrl.report.groups import KEYS
from hpcrl.report.settings import changed
from hpcrl.report.statistics import (
    CONFIDENCE,
    Estimate,
    Values,
    detectable,
    fisher,
    holm,
    least_fisher,
    least_p,
    mann_whitney,
    ratio,
    runs_needed,
    runs_to_detect,
)

SCORE = "final_score"
OUTCOME = "outcome"
# column -> its display name
MEASURES = {
    "training_time": "training time",
    "compile_time": "compile time",
    "memory": "memory",
    SCORE: "final score",
}
SMALL = 0.02  # smaller changes are not reported, even if they are significant
LARGE = 0.10  # a comparison that would miss such a change of a time or of memory says nothing
_NEAR_ZERO = 0.1  # of the range of all scores: from an old score below it a change is not told in percent
_FAILED = (*FAILURES, "timeout")
_UNNOTICED = {"compile_time": 0.1}  # seconds; a shorter time, before and now, is not compared
_FEW_SEEDS, _FEW_RUNS = "too few seeds", "too few runs to compare failures"
_Key = tuple[str, ...]  # a line's values of KEYS
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
        column: the column of :data:`MEASURES`, or :data:`OUTCOME`; `measure` is its name in words.
        estimate: the change relative to the old value, with its interval for times and memory, and the p value of its test.
        new, old: the values of the runs; of :data:`OUTCOME` 1 for a run that completed, and 0 for one that failed.
        verdict: one of the words above; that of a measure is set when all changes of a report are judged together.
        why: the reason why it cannot be judged, if there is one. kind: the reason in short, if others have the same in other words.
        needed: the seeds that could show a change, if these are too few.
        text: both values, where the old one is 0 or so near to it that a percentage would say nothing.
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
    text: str = ""
    kind: str = ""
    needed: int = 0

    def __str__(self) -> str:
        p = self.estimate.p
        return f"{self.line}: {self.measure} {self.size}" + (
            f" ({self.interval()})" if self.estimate.low is not None else f" (p = {p:.2g})" if p is not None else ""
        )

    @property
    def size(self) -> str:
        """The change in words."""
        return self.text or f"{100 * self.estimate.value:+.1f} %"

    def interval(self) -> str:
        low, high = self.estimate.low, self.estimate.high
        return "" if low is None or high is None else f"95 % interval {100 * low:+.1f} to {100 * high:+.1f} %"


class _Why(NamedTuple):
    """Why a change cannot be judged: the fields of :class:`Change`."""

    why: str
    kind: str = ""
    needed: int = 0


def compare(new: pd.DataFrame, old: pd.DataFrame, more_is_better: bool = True) -> list[Change]:
    """Compare the lines that two datasets share, on completed cells; :func:`judge` then gives the verdicts.

    With other settings than before nothing can be judged. Times and memory on two kinds of machines cannot be judged either: their difference may be that of the machines. Hosts of one kind are equal here.
    A line of the older dataset without a completed run now is a regression if all of its new runs failed. Otherwise it cannot be judged.
    Where some runs failed, before or now, the numbers of completed ones are compared, too. Runs that were stopped from outside do not count.

    Args:
        new, old: attempts with the columns of `with_groups`.
        more_is_better: whether a higher score is better.
    """
    before = _lines(old)
    alike: dict[_Key, list[_Key]] = {}
    for key in before:
        alike.setdefault(_unplaced(key), []).append(key)
    now = _lines(new)
    changes: list[Change] = []
    seen = set()
    for key, rows in now.items():
        here = _machines(rows)
        if by_name := alike.get(_unplaced(key)):
            other = min(by_name, key=lambda other: (_machines(before[other]) != here, other != key))
            seen.add(other)
            changes += _changes(key, rows, before[other], more_is_better)
    ended, once = _outcomes(new), _outcomes(old)
    completing = {_unplaced(key) for key in now}
    gone = []
    for key, rows in before.items():
        if key not in seen:
            # Failures on another kind of machine count only for a configuration that no longer completes anywhere.
            tried = ended.get(_unplaced(key), {})
            own = {key: tried[key]} if key in tried and key not in now else {}
            some = own if _unplaced(key) in completing else tried
            gone.append(_gone(key, len(rows), [outcome for outcomes in some.values() for outcome in outcomes]))
    failing = [_completion(name, ended[name], once[name]) for name in alike if name in completing]
    return [*changes, *(change for change in failing if change), *gone]


def _outcomes(rows: pd.DataFrame) -> dict[_Key, dict[_Key, list[str]]]:
    """Return the outcomes of each line, by its name without a machine."""
    found: dict[_Key, dict[_Key, list[str]]] = {}
    for name, group in rows.groupby(list(KEYS), sort=False):
        key = tuple(map(str, name))
        found.setdefault(_unplaced(key), {})[key] = list(group["outcome"])
    return found


def _completion(name: _Key, new: Mapping[_Key, Sequence[str]], old: Mapping[_Key, Sequence[str]]) -> Change | None:
    """Return the change of the number of runs of a configuration that completed; None if none failed, before or now."""
    over, under = (
        np.array([float(outcome == "completed") for some in lines.values() for outcome in some if _ended(outcome)])
        for lines in (new, old)
    )
    if over.all() and under.all():
        return None
    counts = int(over.sum()), len(over), int(under.sum()), len(under)
    # A test that cannot be significant is none (Tarone 1990), so that it does not weaken the others.
    p = fisher(*counts) if least_fisher(*counts) <= 1 - CONFIDENCE else None
    return Change(
        study=name[0], line=", ".join(name), column=OUTCOME, measure="completed runs",
        estimate=Estimate(float(over.mean() / under.mean()) - 1, None, None, p=p), more_is_better=True, new=over, old=under,
        why="" if p is not None else _few_runs(over, under), text=f"from {counts[2]} of {counts[3]} to {counts[0]} of {counts[1]}", kind=_FEW_RUNS,
    )  # fmt: skip


def _ended(outcome: str) -> bool:
    """Tell whether a run ended by itself or at its limits: runs that were stopped from outside say nothing about the configuration."""
    return outcome in ("completed", *_FAILED)


def _few_runs(over: Values, under: Values) -> str:
    return f"{len(under)} runs before and {len(over)} now are too few to show a change of how many complete"


def _lines(rows: pd.DataFrame) -> dict[_Key, pd.DataFrame]:
    """Return the completed runs of each line."""
    groups = rows[rows["outcome"] == "completed"].groupby(list(KEYS), sort=True)
    return {tuple(map(str, key)): group for key, group in groups}


def _unplaced(key: _Key) -> _Key:
    """Return the name of a line without its machine, which names have if cells ran on several kinds or hosts."""
    study, cluster, what, where = key
    return study, cluster.partition(" (")[0], what, where.partition(" (")[0]


def _changes(key: _Key, new: pd.DataFrame, old: pd.DataFrame, more_is_better: bool) -> Iterator[Change]:
    here, there = (_machines(rows) for rows in (new, old))
    other = changed(new, old)
    elsewhere = "" if here == there else f"it ran on another kind of machine (before: {there}; now: {here})"
    for column, name in MEASURES.items():
        over, under = (_values(rows, column) for rows in (new, old))
        if len(over) == 0 or len(under) == 0 or not (over.any() or under.any()):
            continue
        if max(over.max(), under.max()) < _UNNOTICED.get(column, -math.inf):
            continue
        estimate = _score_change(over, under) if column == SCORE else _relative(over, under)
        why = other or (elsewhere if column != SCORE else "")
        if why:
            estimate = Estimate(estimate.value, None, None)
        better = more_is_better and column == SCORE
        text = _from_zero(column, over, under)
        yield Change(key[0], ", ".join(key), column, name, estimate, better, over, under, why=why, text=text)


def _gone(key: _Key, before: int, outcomes: Sequence[str]) -> Change:
    """Return the change of a line that has no completed run any more. Runs that were stopped from outside say nothing about it."""
    why = f"none of {count(len(outcomes), 'run')} completed" if outcomes else "the new dataset has no run of this name"
    failed = outcomes and all(outcome in _FAILED for outcome in outcomes)
    return Change(
        study=key[0], line=", ".join(key), column=OUTCOME, measure="completed runs", estimate=Estimate(-1.0, None, None),
        more_is_better=True, new=np.array([]), old=np.array([]), verdict=REGRESSION if failed else NOT_JUDGED, why=why,
        text=f"from {before} to 0",
    )  # fmt: skip


def judge(changes: Sequence[Change]) -> list[Change]:
    """Return the changes with their verdicts, regressions first. The tests of a report are corrected for their number (Holm 1979)."""
    tested = [change for change in changes if change.estimate.p is not None]
    stands = holm([change.estimate.p for change in tested if change.estimate.p is not None])
    judged = [
        change if change.why else replace(change, **_untested(change)._asdict())
        for change in changes
        if change.estimate.p is None
    ]
    for change, stand in zip(tested, stands, strict=True):
        value = change.estimate.value
        if stand and (abs(value) >= SMALL or (change.text and value)):
            better = (value > 0) == change.more_is_better
            judged.append(replace(change, verdict=IMPROVEMENT if better else REGRESSION))
        elif not stand and (why := _missed(change, len(tested))):
            judged.append(replace(change, **why._asdict()))
        else:
            judged.append(replace(change, verdict=NOTHING_SHOWN))
    order = (REGRESSION, IMPROVEMENT, NOTHING_SHOWN, NOT_JUDGED)
    return sorted(judged, key=lambda change: order.index(change.verdict))


def _untested(change: Change) -> _Why:
    if min(len(change.new), len(change.old)) < 2:
        return _Why("one seed: at least 2 seeds are needed", _FEW_SEEDS, 2)
    return _Why(f"some {change.measure} is 0 or negative")


def _missed(change: Change, comparisons: int) -> _Why | None:
    """Say how many seeds could show a change that these could not; None if they could."""
    among = f"for {count(comparisons, 'comparison')}"
    if change.column == OUTCOME:
        return _Why(f"{_few_runs(change.new, change.old)} {among}", _FEW_RUNS)
    if change.column == SCORE:
        if least_p(len(change.new), len(change.old)) <= (1 - CONFIDENCE) / comparisons:
            return None
        needed = runs_needed(comparisons)
        return (
            _Why(f"at least {needed} seeds are needed {among}", _FEW_SEEDS, needed)
            if needed
            else _Why("too many comparisons")
        )
    if detectable(change.new, change.old, comparisons) <= 1 + LARGE:
        return None
    needed = runs_to_detect(change.new, change.old, 1 + LARGE, comparisons)
    large = f"a change of {100 * LARGE:.0f} %"
    if not needed:
        return _Why(f"too noisy to show {large}")
    return _Why(f"about {needed} seeds are needed to show {large} {among}", _FEW_SEEDS, needed)


def _machines(rows: pd.DataFrame) -> str:
    return "; ".join(sorted({_HOST.sub("", name) or "unknown" for name in rows["machine"]}))


def _values(rows: pd.DataFrame, column: str) -> Values:
    return np.asarray(rows[column].dropna().to_numpy(float))


def _relative(over: Values, under: Values) -> Estimate:
    """Return the relative change of positive values. From nothing it is infinite."""
    if min(over.min(), under.min()) <= 0:  # such as compile times of cells without compiling
        before = float(under.mean())
        return Estimate(float(over.mean()) / before - 1 if before else math.inf, None, None)
    estimate = ratio(over, under)
    if estimate.low is None or estimate.high is None:
        return replace(estimate, value=estimate.value - 1)
    return replace(estimate, value=estimate.value - 1, low=estimate.low - 1, high=estimate.high - 1)


def _from_zero(column: str, over: Values, under: Values) -> str:
    """Return both values in words if the old one is 0, or a score near to it; otherwise nothing."""
    centre: Callable[[Values], Any] = np.median if column == SCORE else np.mean
    after, before = float(centre(over)), float(centre(under))
    near = _NEAR_ZERO * float(np.ptp(np.concatenate([over, under]))) if column == SCORE else 0.0
    if before and abs(before) >= near:
        return ""
    return f"from {in_short(before)} to {in_short(after)}" + (" s" if column.endswith("_time") else "")


def _score_change(over: Values, under: Values) -> Estimate:
    """Return the relative change of the median score. An increase is positive for negative scores, too."""
    before = float(np.median(under))
    value = (float(np.median(over)) - before) / (abs(before) or 1.0)
    judged = len(over) > 1 and len(under) > 1
    return Estimate(value, None, None, p=mann_whitney(over, under) if judged else None)
