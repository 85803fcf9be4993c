"""The three or four main findings of a study, each in one sentence with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from hpcrl.report.design import in_short
from hpcrl.report.scaling import Series, in_words
from hpcrl.report.score import Score
from hpcrl.report.statistics import Estimate, Values, geometric_mean, median, ratio
from hpcrl.report.summary import score_differences

MOST = 4
_MODE = "eager"  # the other modes are compared with it
_INTERVAL = "95 % interval"


def findings(rows: pd.DataFrame, score: Score | None = None, series: Sequence[Series] = ()) -> list[str]:
    """Return at most four sentences about the place with the most configurations, computed from completed cells.

    For a study without training and with scaling, the gain of more cores replaces the fastest configuration.

    Args:
        rows: attempts of one study with the columns of `with_groups`.
        series: the series of strong and weak scaling.
    """
    score = score or Score()
    column = "training_time" if rows["training_time"].notna().any() else "wall_time"
    done = rows[rows["outcome"] == "completed"]
    if done.empty:
        return []
    places = done.groupby(["cluster", "where"])["what"].nunique().sort_values(ascending=False, kind="stable")
    cluster, where = places.index[0]
    part = done[(done["cluster"] == cluster) & (done["where"] == where)]
    place = "" if len(places) == 1 else f" on {where}" + (f" of {cluster}" if done["cluster"].nunique() > 1 else "")
    scaled = [] if score.trains else in_words(_first_of_each_kind(series))
    texts = [
        *(scaled or [_speed(part, place, column, score.trains)]),
        _modes(part, place) if score.trains else "",
        _scores(part, place, score),
        _memory(part, place),
    ]
    return [text for text in texts if text][:MOST]


def _first_of_each_kind(series: Sequence[Series]) -> list[Series]:
    return list({curve.kind: curve for curve in reversed(series)}.values())[::-1]


def _groups(part: pd.DataFrame, column: str) -> dict[str, Values]:
    known = part[part[column].notna()]
    return {str(what): np.asarray(group.to_numpy(float)) for what, group in known.groupby("what")[column]}


def _speed(part: pd.DataFrame, place: str, column: str, trains: bool) -> str:
    times = {what: values for what, values in _groups(part, column).items() if values.min() > 0}
    if not times:
        return ""
    ordered = sorted(times, key=lambda what: geometric_mean(times[what]).value)
    first, last = ordered[0], ordered[-1]
    verb = "ends" if column != "training_time" else "trains" if trains else "runs"
    text = f"{first} {verb} in {_with(geometric_mean(times[first]), ' s', 'its own 95 % interval')}"
    if first == last:
        return f"Fastest{place}: {text}."
    pairs = math.comb(len(ordered), 2)
    longest = ratio(times[last], times[first], pairs)
    if longest.low is not None and longest.low <= 1:
        text += f", and {last} takes {_with(longest, ' times')} as long"
        return f"No configuration is shown to be faster than another{place}: {text}.{_at_once(pairs, text)}"
    text += f"; slowest is {last}, which takes {_with(longest, ' times')} as long"
    text += _second(times, ordered, pairs)
    return f"Fastest{place}: {text}.{_at_once(pairs, text)}"


def _second(values: dict[str, Values], ordered: Sequence[str], pairs: int, lead: str = "Next is") -> str:
    """Return what is shown of the second of several configurations, which the mean of the first alone does not tell."""
    first, second = ordered[:2]
    if second == ordered[-1]:
        return ""
    beside = ratio(values[second], values[first], pairs)
    if beside.low is not None and beside.low > 1:
        return f". {lead} {second}, with {_with(beside, ' times')}"
    return f". A difference between {first} and {second} is not shown ({_with(beside, ' times')})"


def _modes(part: pd.DataFrame, place: str) -> str:
    """Return how many times as fast the other modes of a framework are as its eager one."""
    if not (part["dash"] == _MODE).any():
        return ""
    pairs = []
    for framework, own in part.groupby("colour", sort=True):
        times = {str(mode): _groups(group, "training_time") for mode, group in own.groupby("dash")}
        eager = times.get(_MODE, {})
        for mode, others in times.items():
            if mode == _MODE or len(eager) != 1 or len(others) != 1:
                continue
            before, after = next(iter(eager.values())), next(iter(others.values()))
            if min(before.min(), after.min()) <= 0:
                continue
            pairs.append((f"{framework} {mode}", before, after))
    if not pairs:
        return ""
    told = "; ".join(f"{name} {_with(ratio(before, after, len(pairs)), '')}" for name, before, after in pairs)
    return f"Speed in training, relative to eager{place}: {told}.{_at_once(len(pairs), told)}"


def _scores(part: pd.DataFrame, place: str, score: Score) -> str:
    values = _groups(part, "final_score")
    if not values:
        return ""
    sign = -1 if score.more_is_better else 1
    best = sorted(values, key=lambda what: sign * float(np.median(values[what])))
    top = median(values[best[0]])
    equal = [what for what in best if in_short(float(np.median(values[what]))) == in_short(top.value)]
    interval = "" if top.low is None or top.high is None else f", its own {100 * top.level:.0f} % interval {_span(top)}"
    who = best[0] if len(equal) == 1 else f"{len(equal)} of {len(values)} configurations have it"
    text = f"Best median {score.title}{place}: {in_short(top.value)} ({who}{interval if len(equal) == 1 else ''})"
    differences = score_differences({what: values[what] for what in best[:12]}, score.trains)
    return text + (f"; {differences}" if differences else ".")


def _memory(part: pd.DataFrame, place: str) -> str:
    peaks = {what: values for what, values in _groups(part, "memory").items() if values.min() > 0}
    if len(peaks) < 2:
        return ""
    ordered = sorted(peaks, key=lambda what: geometric_mean(peaks[what]).value)
    least, most = ordered[0], ordered[-1]
    pairs = math.comb(len(peaks), 2)
    more = ratio(peaks[most], peaks[least], pairs)
    if more.low is None or more.low <= 1:
        return ""  # no difference shown
    next_to_least = _second(peaks, ordered, pairs, "Next to the least is")
    return (
        f"Least memory{place}: {least}, {in_short(geometric_mean(peaks[least]).value / 1024**3)} GiB at its peak. "
        f"Most memory: {most}, {_with(more, ' times')} as much{next_to_least}.{_at_once(pairs, f'({_INTERVAL}')}"
    )


def _with(estimate: Estimate, unit: str, interval: str = _INTERVAL) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{in_short(estimate.value)}{unit} (one run)"
    if estimate.is_open:
        return f"{in_short(estimate.value)}{unit} (too few runs for an interval)"
    return f"{in_short(estimate.value)}{unit} ({interval} {_span(estimate)})"


def _at_once(comparisons: int, text: str) -> str:
    """Say that the intervals of ratios in a text are wide enough for the choice of a pair among so many."""
    if comparisons < 2 or f"({_INTERVAL}" not in text:
        return ""
    return f" The intervals of the ratios hold for all {comparisons:,} pairs at once."


def _span(estimate: Estimate) -> str:
    return f"{in_short(estimate.low or 0.0)} to {in_short(estimate.high or 0.0)}"
