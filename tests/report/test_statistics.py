from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hpcrl.report.statistics import (
    Estimate,
    bootstrap,
    holm,
    interquartile_mean,
    mann_whitney,
    performance_profile,
    probability_of_improvement,
    ratio,
)
from hpcrl.report.summary import sentences


def test_the_interquartile_mean_by_hand() -> None:
    # Of five, one is cut at each end: (2 + 3 + 4) / 3. Of four, one: (2 + 3) / 2. Of three, none.
    assert interquartile_mean(np.array([5.0, 1, 100, 3, 4])) == 4
    assert interquartile_mean(np.array([9.0, 2, 3, -7])) == 2.5
    assert interquartile_mean(np.array([1.0, 2, 6])) == 3
    assert interquartile_mean(np.array([[5.0, 1, 100, 3, 4], [0, 0, 0, 0, 0]])).tolist() == [4, 0]


def test_improvement_and_profiles_by_hand() -> None:
    # Of the four pairs 3 > 1, 3 = 3, 5 > 1, 5 > 3.
    assert probability_of_improvement(np.array([3.0, 5]), np.array([1.0, 3])).value == 0.875
    assert performance_profile(np.array([1.0, 2, 3, 4]), np.array([0.0, 2, 4])).tolist() == [1, 0.5, 0]


def test_mann_whitney_by_hand() -> None:
    # Of the 20 divisions of six values into threes, the two extreme ones stray as far as this one.
    assert mann_whitney(np.array([1.0, 2, 3]), np.array([4.0, 5, 6])) == 0.1
    assert mann_whitney(np.array([1.0, 1, 1]), np.array([1.0, 1])) == 1
    # 12 against 12 are too many to enumerate; all of one above all of the other is as good as impossible by chance.
    assert 0 < mann_whitney(np.arange(12.0), np.arange(12.0) + 20) < 1e-3


def test_holm_by_hand() -> None:
    # 0.01 <= 0.05 / 3 and 0.02 <= 0.05 / 2 stand; 0.06 > 0.05 / 1 does not. Were 0.03 second, nothing after 0.01 would.
    assert holm([0.06, 0.01, 0.02]) == [False, True, True]
    assert holm([0.04, 0.01, 0.03]) == [False, True, False]


def test_intervals_cover_as_often_as_they_say() -> None:
    """Of 400 intervals of the mean of 30 normal values about 95 % hold the true one (bootstrap: a little fewer)."""
    draw = np.random.default_rng(0)
    inside = 0
    for number in range(400):
        estimate = bootstrap(draw.normal(3, 2, 30), lambda values: values.mean(axis=-1), 1_000, seed=number)
        assert estimate.low is not None
        assert estimate.high is not None
        inside += estimate.low <= 3 <= estimate.high
    assert 0.90 <= inside / 400 <= 0.98


def test_one_run_has_no_interval() -> None:
    assert bootstrap(np.array([2.0]), interquartile_mean) == Estimate(2, None, None)
    assert ratio(np.array([4.0]), np.array([2.0, 2.0])) == Estimate(2, None, None)


def rows(times: dict[str, list[float]], scores: dict[str, list[float]] | None = None) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "what": what, "where": "1 core", "cluster": "c", "outcome": "completed", "training_time": time,
                "final_score": (scores or times)[what][number],
            }
            for what, each in times.items()
            for number, time in enumerate(each)
        ]
    )  # fmt: skip


def test_sentences_say_what_is_shown_and_what_is_not() -> None:
    times = {"a": [10.0, 11, 9, 10], "b": [20.0, 21, 19, 20], "d": [19.5, 21, 20, 20.5]}
    times = {name: each + each for name, each in times.items()}
    scores = {
        name: each + each for name, each in {"a": [1.0, 2, 3, 4], "b": [2.0, 1, 4, 3], "d": [9.0, 8, 9, 8]}.items()
    }
    speed, last = sentences(rows(times, scores))
    assert speed.startswith(
        "1 core: a trains fastest, in 10.0 s on average. b takes 2.00 times as long as a (95 % interval "
    )
    assert "between b and d no difference is shown (95 % interval 0." in speed
    assert last == (
        "1 core: the last policies' scores show no difference in 1 of 3 pairs of configurations; "
        "beyond chance: d above a, d above b."
    )


def test_sentences_on_single_runs_claim_no_interval() -> None:
    (speed,) = sentences(rows({"a": [10.0], "b": [30.0]}))
    assert speed.endswith("b takes 3.00 times as long as a (one run: no interval).")
    assert sentences(rows({"a": [10.0]})) == []


def test_what_did_not_complete_is_not_compared() -> None:
    table = rows({"a": [10.0, 11], "b": [1.0, 1]})
    table.loc[table["what"] == "b", "outcome"] = "timeout"
    assert sentences(table) == []


def test_agreement_with_rliable() -> None:
    """Against the authors' own package; its other half does not import beside today's pandas."""
    from rliable import metrics

    draw = np.random.default_rng(3)
    for x, y in (
        (draw.normal(2, 1, 9), draw.normal(1, 1, 7)),
        (draw.integers(0, 4, 10) * 1.0, draw.integers(0, 4, 10) * 1.0),
    ):
        assert interquartile_mean(x) == pytest.approx(metrics.aggregate_iqm(x[:, None]))
        wanted = metrics.probability_of_improvement(x[:, None], y[:, None])
        assert probability_of_improvement(x, y).value == pytest.approx(wanted)
