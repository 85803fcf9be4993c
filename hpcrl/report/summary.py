"""What the numbers say, in sentences that are all computed: which is faster, by what factor, or that nothing is shown."""

from __future__ import annotations

from itertools import combinations, pairwise, permutations

import numpy as np
import pandas as pd

from hpcrl.errors import count
from hpcrl.report.statistics import (
    CONFIDENCE,
    Estimate,
    Values,
    holm,
    least_p,
    mann_whitney,
    probability_of_improvement,
    ratio,
    runs_needed,
)

_WORTH_SAYING = 0.05  # of a run's wall time
MOST = 12  # configurations of one place that are compared pair by pair: the fastest


def sentences(rows: pd.DataFrame) -> list[str]:
    """Compare the configurations of one study, place by place, on completed cells.

    Args:
        rows: attempts with the columns of `with_groups`.
    """
    done = rows[(rows["outcome"] == "completed") & rows["training_time"].notna()]
    found = []
    for (cluster, where), part in done.groupby(["cluster", "where"], sort=True):
        times = {str(what): _values(group["training_time"]) for what, group in part.groupby("what")}
        if len(times) < 2:
            continue
        place = f"{where} of {cluster}" if rows["cluster"].nunique() > 1 else str(where)
        ordered = sorted(times, key=lambda what: times[what].mean())[:MOST]
        if len(times) > MOST:
            place += f", the {MOST} fastest of {len(times)} configurations"
        found.append(
            f"{place}: {ordered[0]} trains fastest, in {times[ordered[0]].mean():.1f} s on average. "
            + _steps(ordered, times)
        )
        found += [f"{place}: {text}" for text in _break_even(part)]
        scores = {str(what): _values(group["final_score"]) for what, group in part.groupby("what") if what in ordered}
        if text := _scores(scores):
            found.append(f"{place}: {text}")
    return found


def _values(column: pd.Series[float]) -> Values:
    return np.asarray(column.dropna().to_numpy(float))


def _steps(ordered: list[str], times: dict[str, Values]) -> str:
    """Compare each configuration with the next slower one."""
    texts = []
    for faster, slower in pairwise(ordered):
        factor = ratio(times[slower], times[faster])
        if factor.low is None or factor.high is None:
            texts.append(f"{slower} takes {factor.value:.2f} times as long as {faster} (one run: cannot be judged)")
        elif factor.low > 1:
            texts.append(f"{slower} takes {factor.value:.2f} times as long as {faster} ({_interval(factor)})")
        else:
            texts.append(
                f"which of {faster} and {slower} is faster is not shown: {slower} takes {factor.low:.2f} to "
                f"{factor.high:.2f} times as long (95 % interval)"
            )
    return "; ".join(texts) + "."


def _break_even(part: pd.DataFrame) -> list[str]:
    """Say from how many steps a mode that starts later and then is faster pays, among the modes of one framework."""
    known = part[(part["steps"] > 0) & part["wall_time"].notna()]
    # framework -> configuration -> seconds outside of training, seconds for each step, seconds in all
    costs: dict[str, dict[str, tuple[float, float, float]]] = {}
    for (framework, what), group in known.groupby(["colour", "what"], sort=True):
        outside, wall = (group["wall_time"] - group["training_time"]).mean(), group["wall_time"].mean()
        step = (group["training_time"] / group["steps"]).mean()
        costs.setdefault(str(framework), {})[str(what)] = (float(outside), float(step), float(wall))
    texts = []
    for modes in costs.values():
        for slow, fast in permutations(modes, 2):
            (early, dear, _), (late, cheap, wall) = modes[slow], modes[fast]
            if late - early > _WORTH_SAYING * wall and cheap < dear:
                steps = (late - early) / (dear - cheap)
                texts.append(
                    f"{fast} pays beside {slow} from about {float(f'{steps:.2g}'):,.0f} steps: outside of training it takes "
                    f"{late - early:.1f} s more, and {1e3 * (dear - cheap):.3g} ms less for each step."
                )
    return texts


def _scores(scores: dict[str, Values]) -> str:
    """Say which pairs differ in the last policies' scores beyond chance, or how many seeds could show that."""
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
            above = probability_of_improvement(scores[first], scores[second], repetitions=1).value > 0.5
            shown.append(f"{first} above {second}" if above else f"{second} above {first}")
    total = count(len(pairs), "pair") + " of configurations"
    if not any(able) and not shown:
        fewest, needed = min(len(scores[name]) for name in names), runs_needed(len(pairs))
        return f"with {fewest} seeds no difference of scores could be shown among {total}" + (
            f": {needed} seeds each could show one." if needed else "."
        )
    text = f"the last policies' scores differ beyond chance in {len(shown)} of {total}"
    return text + (f": {', '.join(shown)}." if shown else ".")


def _interval(estimate: Estimate) -> str:
    return f"95 % interval {estimate.low:.2f} to {estimate.high:.2f}"
