"""Statistics over seeds, as Agarwal et al. 2021 ("Deep RL at the edge of the statistical precipice", arXiv 2108.13264)
define them; the tests hold them to the authors' package, rliable.

Scores are arrays (runs,) of one configuration on one task. All intervals are percentile bootstrap intervals.
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


@dataclass(frozen=True)
class Estimate:
    """A value and its interval; without an interval (`low` is None) where there is only one run."""

    value: float
    low: float | None
    high: float | None


def interquartile_mean(values: Values, axis: int = -1) -> Any:
    """Return the mean of the middle half of the runs: of n sorted ones, int(n / 4) are cut at each end."""
    count = values.shape[axis]
    cut = int(0.25 * count)
    ordered = np.sort(values, axis=axis)
    return np.take(ordered, range(cut, count - cut), axis=axis).mean(axis=axis)


def bootstrap(
    values: Values, statistic: Callable[[Values], Any], repetitions: int = REPETITIONS, seed: int = 0
) -> Estimate:
    """Estimate a statistic that maps (..., runs) to (...), with its interval over resampled runs."""
    value = float(statistic(values))
    if len(values) < 2:
        return Estimate(value, None, None)
    drawn = _resampled(values, repetitions, np.random.default_rng(seed))
    return Estimate(value, *_interval(np.asarray(statistic(drawn))))


def ratio(over: Values, under: Values, repetitions: int = REPETITIONS, seed: int = 0) -> Estimate:
    """Estimate mean(over) / mean(under), such as how many times as long one configuration takes as another."""
    value = float(over.mean() / under.mean())
    if len(over) < 2 or len(under) < 2:
        return Estimate(value, None, None)
    generator = np.random.default_rng(seed)
    drawn = (_resampled(each, repetitions, generator).mean(axis=-1) for each in (over, under))
    return Estimate(value, *_interval(next(drawn) / next(drawn)))


def relative_change(new: Values, old: Values, repetitions: int = REPETITIONS, seed: int = 0) -> Estimate:
    """Estimate (mean(new) - mean(old)) / |mean(old)|: more is more, though the values be negative, as returns may be."""
    size = abs(float(old.mean()))
    value = float(new.mean() - old.mean()) / size
    if len(new) < 2 or len(old) < 2:
        return Estimate(value, None, None)
    generator = np.random.default_rng(seed)
    after, before = (_resampled(each, repetitions, generator).mean(axis=-1) for each in (new, old))
    return Estimate(value, *_interval((after - before) / size))


def probability_of_improvement(better: Values, worse: Values, repetitions: int = 2_000, seed: int = 0) -> Estimate:
    """Estimate P(X > Y) of a run of each, ties counted half: the Mann-Whitney statistic over the number of pairs."""

    def statistic(x: Values, y: Values) -> Any:
        above = (x[..., :, None] > y[..., None, :]) + 0.5 * (x[..., :, None] == y[..., None, :])
        return above.mean(axis=(-2, -1))

    value = float(statistic(better, worse))
    if len(better) < 2 or len(worse) < 2:
        return Estimate(value, None, None)
    generator = np.random.default_rng(seed)
    x, y = (_resampled(each, repetitions, generator) for each in (better, worse))
    return Estimate(value, *_interval(statistic(x, y)))


def mann_whitney(x: Values, y: Values, most: int = 20_000, seed: int = 0) -> float:
    """Return the two-sided p of the Mann-Whitney test by permutation: exact where there are at most `most` divisions.

    Where divisions are drawn, the observed one counts as one of them, so that p is never 0 (Phipson and Smyth 2010).
    """
    both = np.concatenate([x, y])
    if math.comb(len(both), len(x)) <= most:
        chosen = np.array(list(itertools.combinations(range(len(both)), len(x))))
        drawn = 0
    else:
        generator = np.random.default_rng(seed)
        chosen = np.argsort(generator.random((most, len(both))), axis=1)[:, : len(x)]
        drawn = 1
    # The statistic is the sum of ranks; tied values share theirs.
    ranks = ((both[:, None] > both[None, :]).sum(1) + (both[:, None] >= both[None, :]).sum(1) + 1) / 2
    expected = len(x) * (len(both) + 1) / 2
    strays = np.abs(ranks[chosen].sum(1) - expected)
    as_far = int((strays >= abs(ranks[: len(x)].sum() - expected) - 1e-9).sum())
    return (as_far + drawn) / (len(strays) + drawn)


def holm(values: list[float], level: float = 1 - CONFIDENCE) -> list[bool]:
    """Tell which p values stand when all are asked at once (Holm 1979, step-down)."""
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
