from __future__ import annotations

import math

import numpy as np
import pytest

from hpcrl.report.equivalence import LEVEL, mean_within, median_within, same_ratio

BASE = np.array([10.0, 10.1, 9.9, 10.05])


@pytest.mark.parametrize(
    ("factor", "inside", "outside"), [(1.0, True, False), (1.09, False, False), (1.3, False, True), (0.7, False, True)]
)
def test_a_ratio_is_the_same_within_a_margin(factor: float, inside: bool, outside: bool) -> None:
    found = same_ratio(factor * BASE, BASE, 1.1)
    assert found.value == pytest.approx(factor)
    assert (found.inside <= 0.05, found.outside <= 0.05) == (inside, outside)


def test_noise_shows_neither() -> None:
    found = same_ratio(np.array([5.0, 20.0, 11.0]), np.array([9.0, 4.0, 22.0]), 1.1)
    assert min(found.inside, found.outside) > 0.05


def test_the_interval_and_the_tests_say_the_same() -> None:
    generator = np.random.default_rng(1)
    assert pytest.approx(0.9) == LEVEL
    for _ in range(300):
        over, under = (np.exp(generator.normal(shift, 0.05, 4)) for shift in (generator.normal(0, 0.1), 0))
        found = same_ratio(over, under, 1.1)
        assert (found.inside <= 0.05) == (found.low >= 1 / 1.1 and found.high <= 1.1)
        assert (found.outside <= 0.05) == (found.low >= 1.1 or found.high <= 1 / 1.1)


def test_a_value_at_the_edge_is_rarely_shown_on_either_side() -> None:
    generator = np.random.default_rng(2)
    found = [mean_within(np.exp(generator.normal(math.log(20), 0.3, 5)), 20, 250) for _ in range(2000)]
    assert np.mean([each.inside <= 0.05 for each in found]) == pytest.approx(0.05, abs=0.015)
    assert np.mean([each.outside <= 0.05 for each in found]) == pytest.approx(0.05, abs=0.015)


def test_a_mean_in_a_range_with_an_open_end() -> None:
    values = np.array([1.0, 1.01, 1.02])
    assert mean_within(values, None, 1.05).inside <= 0.05
    assert mean_within(values, None, 1.002).outside > 0.05
    assert mean_within(values, 1.05, None).outside <= 0.05
    assert mean_within(values, 0.5, 1.05).inside <= 0.05


def test_a_median_in_a_range_is_an_exact_sign_test() -> None:
    found = median_within(np.array([21.0, 22.0, 23.0, 24.0, 22.5]), 20, 25)
    assert (found.value, found.inside, found.outside) == (22.5, 1 / 32, 1.0)
    assert (found.low, found.high) == (21.0, 24.0)
    assert median_within(np.array([100.0] * 5), 20, 25).outside == 1 / 32
    assert median_within(np.array([21.0, 22.0, 23.0, 24.0]), 20, 25).inside == 1 / 16
    one_out = median_within(np.array([21.0, 22.0, 23.0, 24.0, 90.0]), 20, 25)
    assert one_out.inside == 6 / 32 and one_out.outside > 0.05
    assert median_within(np.array([0.0] * 5), None, 1.0).inside == 1 / 32
