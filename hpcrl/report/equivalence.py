"""Tests of equality: whether a value, or the ratio of two, is shown to lie in a range.

Two one-sided tests at 5 % each (Schuirmann 1987). They show the range exactly if the 90 % interval lies in it. The opposite
is shown by one of the one-sided tests the other way round, if that interval lies outside.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hpcrl.report.statistics import CONFIDENCE, RESOLUTION, Values, error_of_shift

LEVEL = 2 * CONFIDENCE - 1  # of the interval that belongs to two one-sided tests


@dataclass(frozen=True)
class Position:
    """A value, its interval at :data:`LEVEL`, and whether it lies in a range.

    Args:
        inside, outside: p values of the tests that show the value inside, or outside of the range.
    """

    value: float
    low: float
    high: float
    inside: float
    outside: float


def same_ratio(over: Values, under: Values, margin: float) -> Position:
    """Place the ratio of two geometric means in the range from 1 / `margin` to `margin`, by Welch's t on logarithms.

    Args:
        over, under: at least two positive values each. margin: above 1.
    """
    first, second = np.log(over), np.log(under)
    edge = math.log(margin)
    return _placed(float(first.mean() - second.mean()), *error_of_shift(first, second), -edge, edge)


def mean_within(values: Values, low: float | None, high: float | None) -> Position:
    """Place a geometric mean in a range, by Student's t on logarithms.

    Args:
        values: at least two positive values. low, high: ends of the range; None is an open end.
    """
    logs = np.log(values)
    error = math.sqrt(max(float(logs.var(ddof=1)), RESOLUTION**2) / len(logs))
    least = math.log(low) if low is not None and low > 0 else -math.inf
    most = math.inf if high is None else math.log(high) if high > 0 else -math.inf
    return _placed(float(logs.mean()), error, len(logs) - 1, least, most)


def median_within(values: Values, low: float | None, high: float | None) -> Position:
    """Place the median of any distribution in a range, by exact sign tests.

    With fewer than five values neither side can be shown.
    """
    least, most = -math.inf if low is None else low, math.inf if high is None else high
    ordered, count = np.sort(values), len(values)

    def tail(hits: int) -> float:
        return sum(math.comb(count, number) for number in range(hits, count + 1)) / 2**count

    above = [0.0 if math.isinf(least) else tail(int((ordered > least).sum())), tail(int((ordered > most).sum()))]
    below = [0.0 if math.isinf(most) else tail(int((ordered < most).sum())), tail(int((ordered < least).sum()))]
    # The interval whose ends the sign test cannot exclude.
    cut = max((index for index in range(count // 2 + 1) if tail(count - index) <= 1 - CONFIDENCE), default=-1)
    ends = (-math.inf, math.inf) if cut < 0 else (float(ordered[cut]), float(ordered[count - 1 - cut]))
    return Position(float(np.median(ordered)), *ends, max(above[0], below[0]), min(above[1], below[1]))


def _placed(centre: float, error: float, freedom: float, low: float, high: float) -> Position:
    """Place exp(centre) between exp(low) and exp(high)."""
    from scipy.special import stdtr, stdtrit  # imported here, because SciPy is slow to import

    half = float(stdtrit(freedom, CONFIDENCE)) * error
    above_low, below_high = (float(stdtr(freedom, distance / error)) for distance in (centre - low, high - centre))
    inside = max(1 - above_low, 1 - below_high)
    return Position(
        math.exp(centre), math.exp(centre - half), math.exp(centre + half), inside, min(above_low, below_high)
    )
