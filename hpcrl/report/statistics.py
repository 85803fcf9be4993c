"""Statistics over seeds, one for each kind of data. ``python -m benchmarks.coverage`` simulates their coverage.

Times and memory are positive with multiplicative noise: Welch's t (Welch 1947) compares their logarithms, so ratios are
those of geometric means. Scores may be skewed, capped or bimodal (learnt or not): the interval of their median uses order
statistics, and an exact permutation test compares two sets of them. Both are valid for any distribution. Aggregates
follow Agarwal et al. 2021 ("Deep RL at the edge of the statistical precipice", arXiv 2108.13264); the tests compare them
with the authors' package, rliable.

Scores are arrays (runs,) of one configuration on one task.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
REPETITIONS = 50_000
CONFIDENCE = 0.95
POWER = 0.8  # the usual probability with which a change should be noticed
# Clocks and page sizes can make different values equal: the minimum spread over seeds is this part of the value.
RESOLUTION = 1e-3
_MOST_DIVISIONS = 20_000
_OPEN = 1e6  # ratio of the ends of an interval


@dataclass(frozen=True)
class Estimate:
    """A value and its interval. With only one run there is no interval (`low` is None).

    Args:
        level: probability that such an interval contains the true value.
        p: p value of the test for no difference; None without a test.
    """

    value: float
    low: float | None
    high: float | None
    level: float = CONFIDENCE
    p: float | None = None

    @property
    def is_open(self) -> bool:
        """Tell whether the interval of a ratio leaves any factor possible: the runs are too few for so many comparisons."""
        return self.low is not None and self.high is not None and self.high > _OPEN * self.low


def ratio(over: Values, under: Values, comparisons: int = 1) -> Estimate:
    """Estimate the ratio of the geometric means of two sets of positive values, `over` and `under`.

    The interval and the p value are of Welch's t on the logarithms.

    Args:
        comparisons: the number of ratios whose intervals shall contain their true values all at once (Bonferroni). For a pair
            that the data themselves chose, such as the fastest and the slowest one, this is the number of all pairs.

    Raises:
        ValueError: a value is not positive.
    """
    if min(over.min(), under.min()) <= 0:
        raise ValueError("a ratio needs positive values")
    first, second = np.log(over), np.log(under)
    shift = float(first.mean() - second.mean())
    if len(over) < 2 or len(under) < 2:
        return Estimate(math.exp(shift), None, None)
    from scipy.special import stdtr  # imported here, because SciPy is slow to import

    error, freedom = error_of_shift(first, second)
    half = _half_width(error, freedom, comparisons)
    p = 2 * float(stdtr(freedom, -abs(shift) / error))
    return Estimate(math.exp(shift), math.exp(shift - half), _exp(shift + half), CONFIDENCE, p)


def difference(over: Values, under: Values, comparisons: int = 1) -> Estimate:
    """Estimate the difference of the means of two sets of positive values, with the interval of Welch's t.

    Args:
        comparisons: as in :func:`ratio`.
    """
    shift = float(over.mean() - under.mean())
    if len(over) < 2 or len(under) < 2:
        return Estimate(shift, None, None)
    scale = float(np.concatenate([over, under]).mean())  # the resolution is relative
    error, freedom = error_of_shift(over / scale, under / scale)
    half = scale * _half_width(error, freedom, comparisons)
    return Estimate(shift, shift - half, shift + half)


def detectable(over: Values, under: Values, comparisons: int = 1) -> float:
    """Return the ratio of two sets of positive values that such data would show in four of five cases.

    It is the ratio at which Welch's t has a power of 80 %, if the level is shared by so many comparisons (Bonferroni).
    """
    from scipy.special import stdtrit  # imported here, because SciPy is slow to import

    error, freedom = error_of_shift(np.log(over), np.log(under))
    tail = (1 - CONFIDENCE) / (2 * comparisons)
    return _exp(float(stdtrit(freedom, 1 - tail) + stdtrit(freedom, POWER)) * error)


def runs_to_detect(over: Values, under: Values, factor: float, comparisons: int = 1) -> int | None:
    """Return the runs of each of two sets with which :func:`detectable` is at most `factor`; None if 1,000 are too few.

    The spread is assumed to be that of the values at hand.
    """
    from scipy.special import stdtrit  # imported here, because SciPy is slow to import

    tail = (1 - CONFIDENCE) / (2 * comparisons)
    spread = math.sqrt(sum(max(float(np.log(values).var(ddof=1)), RESOLUTION**2) for values in (over, under)))
    for count in range(2, 1_000):
        freedom = 2 * (count - 1)
        if float(stdtrit(freedom, 1 - tail) + stdtrit(freedom, POWER)) * spread / math.sqrt(count) <= math.log(factor):
            return count
    return None


def error_of_shift(first: Values, second: Values) -> tuple[float, float]:
    """Return the standard error of the difference of two means, and its degrees of freedom (Welch and Satterthwaite)."""
    parts = [max(float(values.var(ddof=1)), RESOLUTION**2) / len(values) for values in (first, second)]
    error = math.sqrt(sum(parts))
    freedom = sum(parts) ** 2 / sum(
        part**2 / (len(values) - 1) for part, values in zip(parts, (first, second), strict=True)
    )
    return error, freedom


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def _half_width(error: float, freedom: float, comparisons: int) -> float:
    """Return half the width of an interval of Student's t, of which so many hold at once (Bonferroni)."""
    from scipy.special import stdtrit  # imported here, because SciPy is slow to import

    return float(stdtrit(freedom, 1 - (1 - CONFIDENCE) / (2 * comparisons))) * error


def geometric_mean(values: Values) -> Estimate:
    """Estimate the geometric mean of positive values, with the interval of Student's t on their logarithms.

    Raises:
        ValueError: a value is not positive.
    """
    if values.min() <= 0:
        raise ValueError("a geometric mean needs positive values")
    logs = np.log(values)
    centre = float(logs.mean())
    if len(values) < 2:
        return Estimate(math.exp(centre), None, None)
    from scipy.special import stdtrit  # imported here, because SciPy is slow to import

    error = math.sqrt(max(float(logs.var(ddof=1)), RESOLUTION**2) / len(values))
    half = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * error
    return Estimate(math.exp(centre), math.exp(centre - half), _exp(centre + half))


def median(values: Values) -> Estimate:
    """Estimate the median, with an interval from one ordered run to another.

    It contains the median of any continuous distribution with at least the probability `level`, which is exact. With fewer
    than six runs even the interval from the lowest to the highest run does not reach 95 %, and `level` is lower
    (David and Nagaraja 2003, "Order Statistics", section 7.1).
    """
    ordered = np.sort(values)
    count = len(ordered)
    value = float(np.median(ordered))
    if count < 2:
        return Estimate(value, None, None)
    cut, level = interval_of_median(count)
    return Estimate(value, float(ordered[cut]), float(ordered[count - 1 - cut]), level)


def interval_of_median(count: int) -> tuple[int, float]:
    """Return how many ordered runs the median's interval leaves out at each end, and its level."""
    cut, level = 0, _level_of_order(count, 0)
    while (narrower := _level_of_order(count, cut + 1)) >= CONFIDENCE:
        cut, level = cut + 1, narrower
    return cut, level


def _level_of_order(count: int, cut: int) -> float:
    """Return the probability that the median is between the remaining ordered runs if `cut` are removed at each end."""
    if 2 * cut >= count:
        return 0.0
    return 1 - 2 * sum(math.comb(count, number) for number in range(cut + 1)) / 2**count


def interquartile_mean(values: Values, axis: int = -1) -> Any:
    """Return the mean of the middle half of the runs: int(n / 4) of n sorted runs are removed at each end."""
    count = values.shape[axis]
    cut = int(0.25 * count)
    ordered = np.sort(values, axis=axis)
    return np.take(ordered, range(cut, count - cut), axis=axis).mean(axis=axis)


def bootstrap(
    values: Values, statistic: Callable[[Values], Any], repetitions: int = REPETITIONS, seed: int = 0
) -> Estimate:
    """Estimate a statistic that maps (..., runs) to (...), with its percentile interval over resampled runs.

    With few runs such intervals are too narrow; ``benchmarks/coverage`` measures by how much.
    """
    value = float(statistic(values))
    if len(values) < 2:
        return Estimate(value, None, None)
    drawn = _resampled(values, repetitions, np.random.default_rng(seed))
    return Estimate(value, *_interval(np.asarray(statistic(drawn))))


def probability_of_improvement(better: Values, worse: Values) -> Estimate:
    """Estimate P(X > Y) for one run of each, ties count half: the Mann-Whitney statistic over the number of pairs.

    The interval is method 5 of Newcombe 2006 ("Confidence intervals for an effect size measure based on the Mann-Whitney
    statistic", part 2, Statistics in Medicine 25). Those of a bootstrap are far too narrow if one set is above the other.
    """
    pairs = (better[:, None] > worse[None, :]) + 0.5 * (better[:, None] == worse[None, :])
    value = float(pairs.mean())
    if len(better) < 2 or len(worse) < 2:
        return Estimate(value, None, None)
    # A value and its complement have the same spread.
    low, high = (_least_probability(part, len(better), len(worse)) for part in (value, 1 - value))
    return Estimate(value, low, 1 - high)


def _least_probability(value: float, first: int, second: int) -> float:
    """Return the least probability of which an estimate of `value` is not yet too far away."""
    from scipy.special import ndtri  # imported here, because SciPy is slow to import

    quantile = float(ndtri((1 + CONFIDENCE) / 2))
    more = (first + second) / 2 - 1
    low, high = 0.0, value
    for _ in range(50):
        middle = (low + high) / 2
        share = (1 - middle) / (2 - middle) + middle / (1 + middle)
        spread = math.sqrt(middle * (1 - middle) * (1 + more * share) / (first * second))
        low, high = (low, middle) if middle + quantile * spread > value else (middle, high)
    return low


def mann_whitney(x: Values, y: Values, most: int = _MOST_DIVISIONS, seed: int = 0) -> float:
    """Return the two-sided p of the Mann-Whitney test by permutation: exact if there are at most `most` divisions.

    If divisions are drawn at random, the observed one counts as one of them, so that p is never 0 (Phipson and Smyth 2010).
    """
    both = np.concatenate([x, y])
    if math.comb(len(both), len(x)) <= most:
        chosen = np.array(list(itertools.combinations(range(len(both)), len(x))))
        drawn = 0
    else:
        generator = np.random.default_rng(seed)
        chosen = np.argsort(generator.random((most, len(both))), axis=1)[:, : len(x)]
        drawn = 1
    # The statistic is the sum of ranks; tied values share their mean rank.
    ranks = ((both[:, None] > both[None, :]).sum(1) + (both[:, None] >= both[None, :]).sum(1) + 1) / 2
    expected = len(x) * (len(both) + 1) / 2
    strays = np.abs(ranks[chosen].sum(1) - expected)
    as_far = int((strays >= abs(ranks[: len(x)].sum() - expected) - 1e-9).sum())
    return (as_far + drawn) / (len(strays) + drawn)


def least_p(first: int, second: int) -> float:
    """Return the minimum p of :func:`mann_whitney` for two groups of so many runs."""
    return max(2 / math.comb(first + second, first), 1 / (_MOST_DIVISIONS + 1))


def fisher(first: int, runs: int, second: int, others: int) -> float:
    """Return the two-sided p of Fisher's exact test: `first` of `runs` completed, and `second` of `others`."""
    total = first + second
    ways = {
        k: math.comb(runs, k) * math.comb(others, total - k)
        for k in range(max(0, total - others), min(runs, total) + 1)
    }
    return sum(way for way in ways.values() if way <= ways[first]) / math.comb(runs + others, total)


def least_fisher(first: int, runs: int, second: int, others: int) -> float:
    """Return the minimum p of :func:`fisher` for so many runs of which as many completed in all."""
    total = first + second
    ends = (max(0, total - others), min(runs, total))
    return min(fisher(end, runs, total - end, others) for end in ends)


def runs_needed(comparisons: int) -> int | None:
    """Return the runs per configuration that can show a difference of scores in so many comparisons at once.

    None if no number of runs can, because there are too many comparisons for the number of divisions drawn.
    """
    level = (1 - CONFIDENCE) / max(1, comparisons)
    return next((count for count in range(2, 20) if least_p(count, count) <= level), None)


def holm(values: list[float], level: float = 1 - CONFIDENCE) -> list[bool]:
    """Tell which p values are significant together (Holm 1979, step-down)."""
    stands = [False] * len(values)
    for rank, index in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        if values[index] > level / (len(values) - rank):
            break
        stands[index] = True
    return stands


def performance_profile(values: Values, thresholds: Values) -> Values:
    """Return the fraction of runs above each threshold (thresholds,)."""
    above: Values = (values[:, None] > thresholds[None, :]).mean(axis=0)
    return above


def _resampled(values: Values, repetitions: int, generator: np.random.Generator) -> Values:
    return values[generator.integers(0, len(values), (repetitions, len(values)))]


def _interval(values: Values) -> tuple[float, float]:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)
