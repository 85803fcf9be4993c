"""Computed sentences about the results: which configuration is faster, by which factor, or that no difference is shown."""

from __future__ import annotations

import math
from itertools import combinations, pairwise

import numpy as np
import pandas as pd

from hpcrl.errors import count
from hpcrl.report.break_even import break_evens, costs
from hpcrl.report.design import capitalised, in_short
from hpcrl.report.intervals import INTERVAL, span
from hpcrl.report.score import Score
from hpcrl.report.statistics import (
    CONFIDENCE,
    Values,
    geometric_mean,
    holm,
    least_p,
    mann_whitney,
    probability_of_improvement,
    ratio,
    runs_needed,
)

MOST = 12  # the fastest configurations of one place, which are compared pair by pair
_FEW = 3  # of them that are compared in a chain if there are more


def sentences(rows: pd.DataFrame, score: Score | None = None) -> list[str]:
    """Compare the configurations of one study, place by place and task by task, on completed cells.

    Args:
        rows: attempts with the columns of `with_groups`.
    """
    score = score or Score()
    trains = score.trains
    column, verb = ("training_time", "trains") if rows["training_time"].notna().any() else ("wall_time", "ends")
    verb = verb if trains or verb == "ends" else "runs"
    done = rows[(rows["outcome"] == "completed") & (rows[column] > 0)]
    texts = []
    for (cluster, where, task), part in done.groupby(["cluster", "where", "task"], sort=True):
        times = {str(what): _values(group[column]) for what, group in part.groupby("what")}
        if len(times) < 2:
            continue
        place = (f"{task}, " if task else "") + str(where) + (f" of {cluster}" if rows["cluster"].nunique() > 1 else "")
        ordered = sorted(times, key=lambda what: geometric_mean(times[what]).value)[:MOST]
        if len(times) > MOST:
            place += f", the {MOST} fastest of {len(times):,} configurations"
        texts.append(
            f"{place}: {ordered[0]} {verb} in the shortest time, {in_short(geometric_mean(times[ordered[0]]).value)} s (geometric mean). "
            + _steps(ordered if len(times) <= MOST else ordered[:_FEW], times)
        )
        if trains:
            texts += [f"{place}: {text}" for text in break_evens(costs(part[part["what"].isin(ordered)]))]
        scores = {str(what): _values(group["final_score"]) for what, group in part.groupby("what") if what in ordered}
        if text := score_differences(scores, score):
            texts.append(f"{place}: {text}")
    return texts


def _values(column: pd.Series[float]) -> Values:
    return np.asarray(column.dropna().to_numpy(float))


def _steps(ordered: list[str], times: dict[str, Values]) -> str:
    """Compare each configuration with the next slower one. The intervals hold for all pairs of `times` at once."""
    texts = []
    pairs = math.comb(len(times), 2)
    for faster, slower in pairwise(ordered):
        factor = ratio(times[slower], times[faster], pairs)
        if factor.low is None or factor.high is None:
            texts.append(
                f"{slower} takes {in_short(factor.value)} times as long as {faster} (one run, not enough for a test)"
            )
        elif factor.is_open:
            texts.append(f"the runs are too few to compare {faster} and {slower} among {pairs:,} pairs")
        elif factor.low > 1:
            texts.append(
                f"{slower} takes {in_short(factor.value)} times as long as {faster} ({INTERVAL} {span(factor)})"
            )
        else:
            texts.append(
                f"a difference between {faster} and {slower} is not shown: {slower} takes {in_short(factor.low)} to "
                f"{in_short(factor.high)} times as long (95 % interval)"
            )
    text = "; ".join(texts) + "."
    if texts[0].startswith(("a difference ", "the runs ")):  # no name of a configuration
        text = capitalised(text)
    at_once = f" The intervals hold for all {pairs:,} pairs at once." if pairs > 1 and "95 %" in text else ""
    return text + at_once


def score_differences(scores: dict[str, Values], score: Score) -> str:
    """Name the pairs with a significant difference of scores, or the number of seeds that could show one."""
    runs, whose = ("seeds", "the last policies' scores") if score.trains else ("repeats", "scores")
    names = [name for name in sorted(scores) if len(scores[name]) > 1]
    if len(names) < 2:
        return ""
    pairs = list(combinations(names, 2))
    tests = [mann_whitney(scores[first], scores[second]) for first, second in pairs]
    able = [
        least_p(len(scores[first]), len(scores[second])) <= (1 - CONFIDENCE) / len(pairs) for first, second in pairs
    ]
    shown = []
    for (first, second), differs in zip(pairs, holm(tests), strict=True):
        if differs:
            above = probability_of_improvement(scores[first], scores[second]).value > 0.5
            better, worse = (first, second) if above == score.more_is_better else (second, first)
            shown.append(f"{better} better than {worse}")
    total = count(len(pairs), "pair") + " of configurations"
    if not any(able) and not shown:
        fewest, needed = min(len(scores[name]) for name in names), runs_needed(len(pairs))
        return f"{fewest} {runs} are too few to show a difference of scores among {total}" + (
            f": the minimum is {needed} {runs} each." if needed else "."
        )
    text = f"{whose} differ beyond chance in {len(shown)} of {total}"
    return text + (f": {', '.join(shown)}." if shown else ".")
