"""The three or four main findings of a study, each in one sentence with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pandas as pd

from hpcrl.report.design import counted, in_gib, in_short
from hpcrl.report.intervals import INTERVAL, span, with_interval
from hpcrl.report.scaling import Series, in_words
from hpcrl.report.score import Score
from hpcrl.report.statistics import Values, geometric_mean, median, ratio
from hpcrl.report.summary import score_differences

MOST = 4
_MOST_TASKS = 3
_MOST_BY_PAIRS = 100  # configurations that are all compared with one another, which takes half a second
_MOST_SCORES = 12  # configurations whose scores are compared
_MODE = "eager"  # the other modes are compared with it


def findings(rows: pd.DataFrame, score: Score | None = None, series: Sequence[Series] = ()) -> list[str]:
    """Return at most four sentences about the place with the most configurations, computed from completed cells.

    Of a study with several tasks (see `with_groups`) there are two about each of the first three: times and scores. Before them is one about cells that still
    run, if there are any. For a study without training and with scaling, the gain of more cores replaces the fastest configuration.

    Args:
        rows: attempts of one study with the columns of `with_groups`.
        series: the series of strong and weak scaling.
    """
    score = score or Score()
    column = "training_time" if rows["training_time"].notna().any() else "wall_time"
    done = rows[rows["outcome"] == "completed"]
    running = _running(rows)
    if done.empty:
        return running
    several = len({curve.cluster for curve in series}) > 1
    scaled = [] if score.trains else in_words(_first_of_each_kind(series), several=several)
    places = _place_of_each_task(done)[:_MOST_TASKS]
    texts = []
    for task, cluster, where in places:
        part, here = (_of(found, task, cluster, where) for found in (done, rows))
        place = f" on {where}" + (f" of {cluster}" if done["cluster"].nunique() > 1 else "")
        place = "" if len(done[["cluster", "where"]].drop_duplicates()) == 1 else place
        several_tasks = len(places) > 1
        told = [
            *(scaled or [_speed(part, place, column, score.trains, here["what"].nunique()) + _whole_runs(part)]),
            _modes(part, place) if score.trains and not several_tasks else "",
            _scores(part, place, score),
            "" if several_tasks else _memory(part, place),
        ]
        texts += [(f"{task}: " if several_tasks else "") + text for text in told if text]
    return [*running, *texts[: max(MOST, 2 * len(places))]]


def _place_of_each_task(done: pd.DataFrame) -> list[tuple[str, str, str]]:
    """Return task, cluster and place with the most configurations of each task, of places whose machine has its cores if there are some."""
    keys = ["task", "crowded", "cluster", "where"]
    counts = done.groupby(keys, observed=True)["what"].nunique().sort_values(ascending=False, kind="stable")
    places: dict[str, tuple[str, str, str]] = {}
    for task, _, cluster, where in sorted(counts.index, key=lambda place: bool(place[1])):
        places.setdefault(task, (task, cluster, where))
    return list(places.values())


def _of(rows: pd.DataFrame, task: str, cluster: str, where: str) -> pd.DataFrame:
    return rows[(rows["task"] == task) & (rows["cluster"] == cluster) & (rows["where"] == where)]


def _running(rows: pd.DataFrame) -> list[str]:
    """Say that the results are not whole yet. Cells that have not begun have no record, so their number is not known here."""
    number = int((rows["outcome"] == "running").sum())
    if not number:
        return []
    verb = "is" if number == 1 else "are"
    return [
        f"Results so far: {counted(number, 'cell')} {verb} still running, and cells that have not begun are not counted."
    ]


def _first_of_each_kind(series: Sequence[Series]) -> list[Series]:
    return list({curve.kind: curve for curve in reversed(series)}.values())[::-1]


def _groups(part: pd.DataFrame, column: str) -> dict[str, Values]:
    known = part[part[column].notna()]
    return {str(what): np.asarray(group.to_numpy(float)) for what, group in known.groupby("what")[column]}


def _speed(part: pd.DataFrame, place: str, column: str, trains: bool, configurations: int) -> str:
    """Compare the times of some configurations.

    Args:
        part: their completed runs. configurations: the number of all, also of those without a completed run.
    """
    times = {what: values for what, values in _groups(part, column).items() if values.min() > 0}
    if not times:
        return ""
    ordered = sorted(times, key=lambda what: geometric_mean(times[what]).value)
    first, last = ordered[0], ordered[-1]
    verb = "ends" if column != "training_time" else "trains" if trains else "runs"
    told = {what: with_interval(geometric_mean(times[what]), " s", "its own 95 % interval") for what in (first, last)}
    completed = part["what"].nunique()
    among = f" of the {completed:,} of {configurations:,} configurations with completed runs"
    among = among if completed < configurations else ""
    if first == last:
        if completed == 1 < configurations:
            return f"Only 1 of {configurations:,} configurations has completed runs{place}: {first} {verb} in {told[first]}."
        return f"{first} {verb}{place} in {told[first]}."
    pairs = math.comb(len(ordered), 2)
    longest = ratio(times[last], times[first], pairs)
    if longest.low is None:
        return (
            f"One run cannot show which configuration is faster{place}. The shortest time{among} is that of {first}, "
            f"which {verb} in {told[first]}, and the longest is that of {last}, {told[last]}."
        )
    text = f"{first} {verb} in {told[first]}"
    if longest.low <= 1:
        text += f", and {last} takes {with_interval(longest, ' times')} as long"
        none = f"None{among}" if among else "No configuration"
        head = f"{none} is shown to be faster than another"
        if _differ(times, ordered, pairs):
            head = f"The configuration with the longest time{among} is not shown to be slower than the one with the shortest"
            text += _second(times, ordered, pairs)
        elif len(ordered) > _MOST_BY_PAIRS:
            head = f"Of {completed:,} configurations at once, none is shown to differ from the fastest"
        return f"{head}{place}: {text}.{_at_once(pairs, text)}"
    text += f"; slowest is {last}, which takes {with_interval(longest, ' times')} as long"
    text += _second(times, ordered, pairs)
    return f"Fastest{among}{place}: {text}.{_at_once(pairs, text)}"


def _whole_runs(part: pd.DataFrame) -> str:
    """Say so where the whole runs of another configuration are shorter than those of the one that trains fastest, as the first figure shows."""
    training, whole = (_groups(part, column) for column in ("training_time", "wall_time"))
    both = [what for what in training if what in whole and training[what].min() > 0 and whole[what].min() > 0]
    if len(both) < 2:
        return ""
    fastest, shortest = (min(both, key=lambda what: geometric_mean(times[what]).value) for times in (training, whole))
    longer = ratio(whole[fastest], whole[shortest], math.comb(len(both), 2))
    if fastest == shortest or longer.low is None or longer.low <= 1:
        return ""
    return f" But whole runs, with imports, compiling and evaluations, take {with_interval(longer, ' times')} as long with {fastest} as with {shortest}."


def _differ(times: dict[str, Values], ordered: Sequence[str], pairs: int) -> bool:
    """Tell whether any two configurations are shown to differ: of very many, the fastest and another one."""
    whole = len(ordered) <= _MOST_BY_PAIRS
    some = combinations(ordered, 2) if whole else ((ordered[0], other) for other in ordered[1:])
    found = (ratio(times[slower], times[faster], pairs).low for faster, slower in some)
    return any(low is not None and low > 1 for low in found)


def _second(values: dict[str, Values], ordered: Sequence[str], pairs: int, lead: str = "Next is") -> str:
    """Return what is shown of the second of several configurations, which the mean of the first alone does not tell."""
    first, second = ordered[:2]
    if second == ordered[-1]:
        return ""
    beside = ratio(values[second], values[first], pairs)
    if beside.low is not None and beside.low > 1:
        return f". {lead} {second}, with {with_interval(beside, ' times')}"
    return f". A difference between {first} and {second} is not shown ({with_interval(beside, ' times')})"


def _modes(part: pd.DataFrame, place: str) -> str:
    """Return how many times as fast the other modes of a framework are as its eager one."""
    if not (part["dash"] == _MODE).any():
        return ""
    pairs = []
    column, told = "training_time", "Speed in training"
    if "steps" in part and bool((part["steps"] > 0).all()) and part["steps"].nunique() > 1:
        # Runs that stop at a goal, or after so many episodes, have other numbers of steps.
        part = part.assign(time_per_step=part["training_time"] / part["steps"])
        column, told = "time_per_step", "Speed of a step in training"
    for framework, own in part.groupby("colour", sort=True):
        times = {str(mode): _groups(group, column) for mode, group in own.groupby("dash")}
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
    speeds = "; ".join(f"{name} {with_interval(ratio(before, after, len(pairs)), '')}" for name, before, after in pairs)
    return f"{told}, relative to eager{place}: {speeds}.{_at_once(len(pairs), speeds)}"


def _scores(part: pd.DataFrame, place: str, score: Score) -> str:
    values = _groups(part, "final_score")
    if not values:
        return ""
    sign = -1 if score.more_is_better else 1
    best = sorted(values, key=lambda what: sign * float(np.median(values[what])))
    top = median(values[best[0]])
    equal = [what for what in best if in_short(float(np.median(values[what]))) == in_short(top.value)]
    interval = "" if top.low is None or top.high is None else f", its own {100 * top.level:.0f} % interval {span(top)}"
    who = best[0] if len(equal) == 1 else f"{len(equal)} of {len(values)} configurations have it"
    head = "Best median" if len(values) > 1 else "Median"
    text = f"{head} {score.title}{place}: {in_short(top.value)} ({who}{interval if len(equal) == 1 else ''})"
    differences = score_differences({what: values[what] for what in best[:_MOST_SCORES]}, score)
    some = f"of the {_MOST_SCORES} best, " if len(best) > _MOST_SCORES else ""
    return text + (f"; {some}{differences}" if differences else ".")


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
        f"Least memory{place}: {least}, {in_gib(geometric_mean(peaks[least]).value)} GiB at its peak. "
        f"Most memory: {most}, {with_interval(more, ' times')} as much{next_to_least}.{_at_once(pairs, f'({INTERVAL}')}"
    )


def _at_once(comparisons: int, text: str) -> str:
    """Say that the intervals of ratios in a text are wide enough for the choice of a pair among so many."""
    if comparisons < 2 or f"({INTERVAL}" not in text:
        return ""
    return f" The intervals of the ratios hold for all {comparisons:,} pairs at once."
