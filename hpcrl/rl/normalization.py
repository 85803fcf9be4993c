"""Running means and variances of observations and of discounted returns, in NumPy's arrays or JAX's.

The formulae are those of OpenAI Baselines' and Stable-Baselines3's VecNormalize; here the moments change between rollouts only,
so that a policy learns on the scale on which it acted. An evaluation after a rollout has the next one's scale.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

_SMALLEST = 1e-8  # variance
_LARGEST = 10.0  # normalised value


class Moments(NamedTuple):
    """Mean and variance (as wide as a row of the data) of `count` rows."""

    mean: Any
    variance: Any
    count: Any


def none_yet(*shape: int) -> Moments:
    """Return moments that leave data as they are, and have almost no weight."""
    return Moments(np.zeros(shape, np.float32), np.ones(shape, np.float32), np.float32(1e-4))


def merged(moments: Moments, batch: Moments) -> Moments:
    """Return the moments of both sets of rows (Chan, Golub and LeVeque 1983, The American Statistician 37, equation 2.1)."""
    apart, count = batch.mean - moments.mean, moments.count + batch.count
    mean = moments.mean + apart * (batch.count / count)
    squares = moments.variance * moments.count + batch.variance * batch.count
    return Moments(mean, (squares + apart**2 * (moments.count * batch.count / count)) / count, count)


def moments_of(rows: Any) -> Moments:
    """Return the moments of rows (n, ...)."""
    return Moments(rows.mean(0), rows.var(0), np.float32(len(rows)))


def centred(values: Any, moments: Moments) -> Any:
    """Return values with mean 0 and variance 1, at most 10 from 0."""
    return ((values - moments.mean) / (moments.variance + _SMALLEST) ** 0.5).clip(-_LARGEST, _LARGEST)


def scaled(values: Any, moments: Moments) -> Any:
    """Return values by their standard deviation, at most 10 from 0: a reward keeps its sign."""
    return (values / (moments.variance + _SMALLEST) ** 0.5).clip(-_LARGEST, _LARGEST)
