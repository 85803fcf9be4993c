from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from hpcrl.report.score import Score
from hpcrl.report.statistics import (
    Estimate,
    bootstrap,
    fisher,
    geometric_mean,
    holm,
    interquartile_mean,
    least_fisher,
    least_p,
    mann_whitney,
    median,
    performance_profile,
    probability_of_improvement,
    ratio,
    runs_needed,
)
from hpcrl.report.summary import score_differences, sentences


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


def test_fisher_s_test_is_that_of_scipy() -> None:
    for runs, others in ((5, 5), (3, 8), (30, 40)):
        for first, second in itertools.product(range(runs + 1), range(others + 1)):
            table = [[first, runs - first], [second, others - second]]
            assert fisher(first, runs, second, others) == pytest.approx(stats.fisher_exact(table).pvalue)
    # Of ten runs one failed: whichever group it is in, p is 1. Of four failed ones all may be in one group of five.
    assert least_fisher(4, 5, 5, 5) == 1
    assert least_fisher(3, 5, 3, 5) == fisher(1, 5, 5, 5) == pytest.approx(2 * 5 / 210)


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
    assert median(np.array([2.0])) == Estimate(2, None, None)
    found = ratio(np.array([4.0]), np.array([2.0, 2.0]))
    assert (found.value, found.low, found.p) == (pytest.approx(2), None, None)


def test_a_ratio_agrees_with_scipy_s_welch_test() -> None:
    from scipy import stats

    draw = np.random.default_rng(4)
    over, under = draw.lognormal(3, 0.2, 6), draw.lognormal(2.8, 0.4, 4)
    found = ratio(over, under)
    wanted = stats.ttest_ind(np.log(over), np.log(under), equal_var=False)
    assert found.p == pytest.approx(wanted.pvalue)
    low, high = np.exp(wanted.confidence_interval(0.95))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    assert found.value == pytest.approx(stats.gmean(over) / stats.gmean(under))
    with pytest.raises(ValueError, match="positive"):
        ratio(np.array([1.0, 0.0]), np.array([1.0, 2.0]))


def test_equal_values_are_not_taken_for_certainty() -> None:
    """Two seeds with the same number of pages each: a clock's or a page's grain is not the noise between seeds."""
    found = ratio(np.array([100.1, 100.1]), np.array([100.0, 100.0]))
    assert found.p is not None
    assert found.p > 0.3


@pytest.mark.parametrize(("runs", "level"), [(2, 0.5), (3, 0.75), (5, 0.9375), (6, 0.96875), (10, 1 - 22 / 1024)])
def test_the_median_s_interval_and_how_often_it_holds(runs: int, level: float) -> None:
    values = np.arange(float(runs))
    found = median(values)
    assert found.level == pytest.approx(level)
    cut = 1 if runs == 10 else 0
    assert (found.low, found.high) == (cut, runs - 1 - cut)


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_intervals_of_times_hold_as_often_as_they_say(seeds: int) -> None:
    draw = np.random.default_rng(seeds)
    for spread in (0.05, 1.0):
        found = [ratio(draw.lognormal(2, spread, seeds), draw.lognormal(2, spread, seeds)) for _ in range(1_000)]
        inside = np.mean(
            [each.low is not None and each.high is not None and each.low <= 1 <= each.high for each in found]
        )
        assert 0.93 <= inside <= 0.99


def test_how_many_seeds_could_show_a_difference() -> None:
    # Two groups of four are divided in 70 ways, so that the least p is 2 / 70; 36 pairs at once ask for 0.05 / 36.
    assert least_p(4, 4) == 2 / 70
    assert (runs_needed(1), runs_needed(36), runs_needed(10_000)) == (4, 7, None)


def rows(times: dict[str, list[float]], scores: dict[str, list[float]] | None = None) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "what": what, "where": "1 core", "task": "", "cluster": "c", "outcome": "completed", "training_time": time,
                "final_score": (scores or times)[what][number], "steps": 1000, "wall_time": time + 5, "colour": what,
                "evaluation_time": 0.0,
            }
            for what, each in times.items()
            for number, time in enumerate(each)
        ]
    )  # fmt: skip


def test_a_geometric_mean_and_its_interval() -> None:
    from scipy import stats

    values = np.array([10.0, 12.0, 9.0, 14.0])
    found = geometric_mean(values)
    assert found.value == pytest.approx(stats.gmean(values))
    low, high = np.exp(stats.t.interval(0.95, 3, np.log(values).mean(), stats.sem(np.log(values))))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    assert geometric_mean(np.array([3.0])) == Estimate(pytest.approx(3), None, None)
    with pytest.raises(ValueError, match="positive"):
        geometric_mean(np.array([1.0, 0.0]))


def test_sentences_say_what_is_shown_and_what_is_not() -> None:
    times = {"a": [10.0, 11, 9, 10], "b": [20.0, 21, 19, 20], "d": [19.5, 21, 20, 20.5]}
    times = {name: each + each for name, each in times.items()}
    scores = {
        name: each + each for name, each in {"a": [1.0, 2, 3, 4], "b": [2.0, 1, 4, 3], "d": [9.0, 8, 9, 8]}.items()
    }
    speed, last = sentences(rows(times, scores))
    assert speed.startswith(
        "1 core: a trains in the shortest time, 9.97 s (geometric mean). b takes 2.00 times as long as a (95 % interval "
    )
    assert "a difference between b and d is not shown: d takes 0.9" in speed
    assert speed.endswith(" The intervals hold for all 3 pairs at once.")
    assert last == (
        "1 core: the last policies' scores differ beyond chance in 2 of 3 pairs of configurations: d better than a, d better than b."
    )


def test_where_less_is_better_the_lower_score_is_the_better_one() -> None:
    scores = {"fast": [100.0, 101, 102, 103, 104], "slow": [55.0, 56, 57, 58, 59]}
    for more, told in ((False, "slow better than fast"), (True, "fast better than slow")):
        assert score_differences(
            dict(zip(scores, map(np.array, scores.values()), strict=True)), Score("loss", more)
        ) == (f"the last policies' scores differ beyond chance in 1 of 1 pair of configurations: {told}.")


def test_sentences_say_how_many_seeds_would_do() -> None:
    table = rows({name: [10.0 + number, 11.0 + number, 12.0 + number] for number, name in enumerate("abc")})
    assert sentences(table)[1] == (
        "1 core: 3 seeds are too few to show a difference of scores among 3 pairs of configurations: the minimum is 5 seeds each."
    )


def test_from_how_many_steps_a_mode_that_starts_later_pays() -> None:
    """Lazy starts 9 s later and then takes 15 s for 100,000 steps in place of 21: 150,000 steps even out."""
    table = rows({"torch eager": [21.0, 21.0], "torch lazy": [15.0, 15.0], "jax lazy": [1.0, 1.0]})
    table["steps"] = 100_000
    table["colour"] = table["what"].str.partition(" ")[0]
    table.loc[table["what"] == "torch lazy", "wall_time"] += 9
    found = [text for text in sentences(table) if " takes less time than " in text]
    assert found == [
        "1 core: torch lazy takes less time than torch eager from about 150,000 steps (95 % interval 146,000 to 154,000): outside of training and its evaluations it takes 9 s more, "
        "and 0.06 ms less per step."
    ]


@pytest.mark.parametrize(
    ("starts", "evaluations", "from_where"),
    [
        ((1.0, 11.0), (20.0, 5.0), "about 20,000 steps"),
        ((1.0, 11.0), (5.0, 5.0), "about 50,000 steps"),
        ((1.0, 11.0), (12.0, 5.0), "about 29,000 steps"),
        ((0.01, 2.0), (5.0, 5.0), "it takes 1.99 s more"),
    ],
)
def test_evaluations_are_a_cost_of_steps_and_not_of_the_start(
    starts: tuple[float, float], evaluations: tuple[float, float], from_where: str
) -> None:
    """Eager takes 0.4 ms for each of 50,000 steps, lazy 0.2 ms."""
    table = rows({"torch eager": [20.0, 20.0], "torch lazy": [10.0, 10.0]})
    lazy = table["what"] == "torch lazy"
    table = table.assign(steps=50_000, colour="torch", evaluation_time=np.where(lazy, *evaluations[::-1]))
    table["wall_time"] = table["training_time"] + table["evaluation_time"] + np.where(lazy, *starts[::-1])
    (found,) = [text for text in sentences(table) if " takes less time than " in text]
    assert "torch lazy takes less time than torch eager" in found and from_where in found


def test_a_break_even_point_needs_differences_that_are_shown() -> None:
    """The means are those of the test above."""
    table = rows({"torch eager": [21.0, 21.0], "torch lazy": [10.0, 20.0]})
    table["steps"] = 100_000
    table["colour"] = "torch"
    table.loc[table["what"] == "torch lazy", "wall_time"] += 9
    assert not [text for text in sentences(table) if " takes less time than " in text]
    (one,) = [text for text in sentences(table[::2]) if " takes less time than " in text]
    assert "steps (one run, not enough for an interval)" in one


def test_sentences_on_single_runs_claim_no_interval() -> None:
    (speed,) = sentences(rows({"a": [10.0], "b": [30.0]}))
    assert speed.endswith("b takes 3.00 times as long as a (one run, not enough for a test).")
    assert sentences(rows({"a": [10.0]})) == []


def test_what_did_not_complete_is_not_compared() -> None:
    table = rows({"a": [10.0, 11], "b": [1.0, 1]})
    table.loc[table["what"] == "b", "outcome"] = "timeout"
    assert sentences(table) == []


@pytest.mark.parametrize("shift", [0.0, 1.0, 3.0])
def test_the_interval_of_a_probability_of_improvement_holds_it(shift: float) -> None:
    from scipy import stats

    generator, truth = np.random.default_rng(5), stats.norm.cdf(shift / np.sqrt(2))
    intervals = [probability_of_improvement(*generator.normal((shift, 0), 1, (5, 2)).T) for _ in range(500)]
    assert np.mean([part.low <= truth <= part.high for part in intervals]) > 0.92  # type: ignore[operator]
    apart = probability_of_improvement(np.arange(5.0) + 5, np.arange(5.0))
    assert apart.value == apart.high == 1 and apart.low is not None and 0.5 < apart.low < 0.8


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
