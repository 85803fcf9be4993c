from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import stats

from hpcrl.report.design import in_gib
from hpcrl.report.findings import MOST, findings
from hpcrl.report.scaling import Point, Series
from hpcrl.report.score import Score
from hpcrl.report.statistics import Estimate, geometric_mean, ratio
from hpcrl.report.summary import sentences

GIB = 1024**3


def rows(times: dict[str, list[float]], scores: dict[str, list[float]], memory: float = 1.0) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "cluster": "c", "where": "1 core", "what": what, "colour": what.partition(" ")[0], "dash": what.partition(" ")[2],
                "outcome": "completed", "training_time": time, "wall_time": time + 1, "final_score": scores[what][number], "evaluation_time": 0.0, "task": "",
                "memory": GIB * (memory if "lazy" in what else 1.0), "crowded": False,
            }
            for what, each in times.items()
            for number, time in enumerate(each)
        ]
    )  # fmt: skip


TIMES = {
    "JAX eager": [100.0, 101, 99, 100],
    "JAX lazy": [10.0, 10.1, 9.9, 10],
    "PyTorch eager": [10.1, 10.0, 9.8, 10.2],
}
SCORES = {"JAX eager": [5.0, 6, 7, 8], "JAX lazy": [90.0, 91, 92, 93], "PyTorch eager": [1.0, 2, 3, 4]}


def test_findings_have_their_intervals_and_say_what_is_not_shown() -> None:
    speed, modes, scores, memory = findings(rows(TIMES, SCORES, memory=3.0))
    assert speed.startswith(
        "Fastest: JAX lazy trains in 10.0 s (its own 95 % interval 9.87 to 10.1); slowest is JAX eager, which takes "
    )
    slow, fast = (np.log(TIMES[name]) for name in ("JAX eager", "JAX lazy"))
    interval = stats.ttest_ind(slow, fast, equal_var=False).confidence_interval(1 - 0.05 / 3)  # one of three pairs
    low, high = (f"{value:.3g}" for value in np.exp(interval))
    assert f"takes 10.0 times (95 % interval {low} to {high} as long" in speed.replace(")", "")
    assert speed.endswith(" The intervals of the ratios hold for all 3 pairs at once.")
    assert "A difference between JAX lazy and PyTorch eager is not shown (1.00 times (95 % interval 0.9" in speed
    assert modes.startswith("Speed in training, relative to eager: JAX lazy 10.0 (95 % interval ")
    assert "PyTorch" not in modes  # it was not run in another mode
    assert scores.startswith("Best median final score: 91.5 (JAX lazy, its own 88 % interval 90 to 93)")
    assert (
        "4 seeds are too few to show a difference of scores among 3 pairs of configurations: the minimum is 5 seeds each"
        in scores
    )
    assert memory.startswith("Least memory: JAX eager, 1.00 GiB at its peak. Most memory: JAX lazy, 3.00 times")
    assert "A difference between JAX eager and PyTorch eager is not shown (1 times (95 % interval " in memory


def test_noise_names_no_fastest_configuration() -> None:
    """The fastest and the slowest of sixteen equal ones differ by what a test of this pair alone would call a difference."""
    generator = np.random.default_rng(3)
    times = {f"numpy {number}": list(10 * np.exp(generator.normal(0, 0.05, 5))) for number in range(16)}
    ordered = sorted(times, key=lambda name: geometric_mean(np.array(times[name])).value)
    alone = ratio(np.array(times[ordered[-1]]), np.array(times[ordered[0]]))
    assert alone.low is not None and alone.low > 1
    speed = findings(rows(times, {name: [1.0, 2, 3, 4, 5] for name in times}))[0]
    assert speed.startswith(f"No configuration is shown to be faster than another: {ordered[0]} trains in ")
    assert speed.endswith("The intervals of the ratios hold for all 120 pairs at once.")


def test_a_noisy_slowest_configuration_hides_no_difference_of_others() -> None:
    times = {"a": [10.0, 10.1, 9.9, 10, 10], "b": [20.0, 20.2, 19.8, 20, 20], "c": [10.0, 62]}
    speed = findings(rows(times, {name: [1.0, 2, 3, 4, 5] for name in times}))[0]
    assert speed.startswith(
        "The configuration with the longest time is not shown to be slower than the one with the shortest: a trains in 10.0 s"
    )
    assert (
        "and c takes 2.49 times (too few runs" in speed and ". Next is b, with 2.00 times (95 % interval 1.9" in speed
    )
    many = {f"numpy {number}": [9.0, 11.0] for number in range(101)}  # too many pairs to compare them all
    speed = findings(rows(many, {name: [1.0, 2] for name in many}))[0]
    assert speed.startswith(
        "Of 101 configurations at once, none is shown to differ from the fastest: numpy 0 trains in "
    )


def test_modes_that_needed_other_numbers_of_steps_are_compared_by_step() -> None:
    times = {"JAX eager": [30.0, 30.3, 29.7, 30], "JAX lazy": [20.0, 20.2, 19.8, 20]}
    table = rows(times, SCORES)
    assert "Speed in training, relative to eager: JAX lazy 1.50 (" in findings(table.assign(steps=30_000))[1]
    steps = np.where(table["dash"] == "lazy", 20_000, 30_000)
    assert "Speed of a step in training, relative to eager: JAX lazy 1 (" in findings(table.assign(steps=steps))[
        1
    ].replace("1.00", "1")


def test_scores_of_the_best_configurations_only_are_said_to_be_those() -> None:
    times = {f"numpy {number}": [1.0 + number, 1.1 + number] for number in range(13)}
    for some, said in ((times, True), (dict(list(times.items())[:12]), False)):
        (text,) = [text for text in findings(rows(some, some)) if text.startswith("Best median")]
        assert ("; of the 12 best, 2 seeds are too few " in text) == said
        assert "among 66 pairs" in text


def test_scaling_on_one_of_several_clusters_names_it() -> None:
    value = Estimate(2.0, None, None)
    points = tuple(Point(count, 1, value, value, value, value) for count in (1, 8))
    series = [Series("strong", name, "", "core", "core-hours", "", "", "", points) for name in ("alpha", "beta")]
    command = rows(TIMES, SCORES)
    assert findings(command, Score(command=True), series)[0].startswith("Strong scaling on alpha: 8 cores are ")
    assert findings(command, Score(command=True), series[:1])[0].startswith("Strong scaling: 8 cores are ")


def test_two_seeds_of_many_configurations_are_too_few_for_intervals() -> None:
    times = {f"numpy {number}": [1.0 + 2 * number, 2.0 + 2 * number] for number in range(80)}
    table = rows(times, {name: [1.0, 2] for name in times})
    speed = findings(table)[0]
    assert speed.startswith(
        "No configuration is shown to be faster than another: numpy 0 trains in 1.41 s (its own 95 % "
    )
    assert speed.endswith("and numpy 79 takes 113 times (too few runs for an interval) as long.")
    in_full = sentences(table.assign(steps=1000))[0]
    assert "(geometric mean). The runs are too few to compare numpy 0 and numpy 1 among 3,160 pairs" in in_full


def test_equal_configurations_have_no_findings_in_nineteen_of_twenty_reports() -> None:
    from benchmarks.coverage import false_findings

    alarms = [false_findings(seeds, 40, np.random.default_rng(seeds))["any of them"] for seeds in (2, 3, 5)]
    assert max(alarms) <= 0.15  # 5 %, and 40 trials


def test_the_second_least_memory_is_not_next_to_the_most() -> None:
    table = rows(TIMES, SCORES, memory=3.0)
    more = table["memory"].where(table["what"] != "PyTorch eager", 2 * GIB)
    (memory,) = [text for text in findings(table.assign(memory=more)) if "memory" in text]
    assert "Most memory: JAX lazy, 3" in memory and ". Next to the least is PyTorch eager, with 2" in memory


def test_what_is_not_shown_is_no_finding_of_memory() -> None:
    assert not [text for text in findings(rows(TIMES, SCORES)) if "memory" in text]


def test_a_lower_score_may_be_the_better_one() -> None:
    (text,) = [text for text in findings(rows(TIMES, SCORES), Score("loss", more_is_better=False)) if "loss" in text]
    assert text.startswith("Best median loss: 2.50 (PyTorch eager, ")


def test_single_runs_claim_no_interval_and_failed_ones_nothing() -> None:
    one = rows({name: each[:1] for name, each in TIMES.items()}, SCORES)
    assert findings(one)[0] == (
        "One run cannot show which configuration is faster. The shortest time is that of JAX lazy, which trains in 10.0 s (one run), "
        "and the longest is that of JAX eager, 100 s (one run)."
    )
    assert "95 %" not in " ".join(findings(one))
    assert findings(one.assign(outcome="failed")) == []


def test_one_configuration_is_not_the_fastest_nor_the_best_of_any() -> None:
    times = {"JAX eager": TIMES["JAX eager"]}
    speed, score = findings(rows(times, SCORES))
    assert speed.startswith("JAX eager trains in 100 s (its own 95 % interval ")
    assert score.startswith("Median final score: 6.50 (JAX eager, ")


def test_configurations_without_a_completed_run_are_counted() -> None:
    table = rows(TIMES, SCORES)
    some = table.assign(outcome=table["outcome"].where(table["what"] != "JAX lazy", "failed"))
    speed = findings(some)[0]
    assert speed.startswith(
        "Fastest of the 2 of 3 configurations with completed runs: PyTorch eager trains in 10.0 s (its own 95 %"
    )
    one = some.groupby("what").head(1)
    assert (
        "The shortest time of the 2 of 3 configurations with completed runs is that of PyTorch eager"
        in findings(one)[0]
    )
    equal = some.assign(training_time=[10.0, 11, 12, 13] * 3)
    assert findings(equal)[0].startswith(
        "None of the 2 of 3 configurations with completed runs is shown to be faster than another: JAX eager trains in "
    )
    alone = some.assign(outcome=some["outcome"].where(some["what"] != "PyTorch eager", "failed"))
    assert findings(alone)[0].startswith(
        "Only 1 of 3 configurations has completed runs: JAX eager trains in 100 s (its own "
    )


def test_results_while_cells_run_are_told_to_be_so_far() -> None:
    table = rows(TIMES, SCORES)
    outcome = table["outcome"].where(table["what"] != "JAX lazy", "running")
    first, speed, *_ = findings(table.assign(outcome=outcome))
    so_far = "Results so far: 4 cells are still running, and cells that have not begun are not counted."
    assert first == so_far and speed.startswith("Fastest of the 2 of 3 ")
    assert findings(table.assign(outcome="running")) == [so_far.replace("4", "12")]
    assert not findings(table)[0].startswith("Results so far")


def test_little_memory_has_no_exponent() -> None:
    sizes = {"JAX eager": 6.18e-4, "JAX lazy": 0.01, "PyTorch eager": 2.0}
    table = rows(TIMES, SCORES)
    (memory,) = [text for text in findings(table.assign(memory=table["what"].map(sizes) * GIB)) if "memory" in text]
    assert memory.startswith("Least memory: JAX eager, 0.00062 GiB at its peak. ")
    assert [in_gib(value * GIB) for value in (1e-5, 1e-4, 0.00099, 0.001, 1.5)] == [
        "1.00e-05", "0.0001", "0.00099", "0.001", "1.50",
    ]  # fmt: skip


def test_a_command_has_wall_times() -> None:
    command = rows(TIMES, SCORES).assign(training_time=float("nan"), dash="")
    found = findings(command)
    assert found[0].startswith("Fastest: JAX lazy ends in 11.0 s")
    assert len(found) <= MOST


def test_whole_runs_of_another_configuration_may_be_shorter() -> None:
    """As with a compiler: the first figure shows whole runs, the first finding training alone."""
    times = {"compiled": [2.0, 2.1, 1.9, 2.0, 2.05], "plain": [4.0, 4.2, 3.9, 4.1, 4.0]}
    some = rows(times, {what: [1.0] * 5 for what in times})
    start = some["what"].map({"compiled": 20.0, "plain": 1.0})
    first, *_ = findings(some.assign(wall_time=some["training_time"] + start))
    assert first.startswith("Fastest: compiled trains in 2.01 s")
    assert "But whole runs, with imports, compiling and evaluations, take 4.37 times (95 % interval" in first
    assert first.endswith("as long with compiled as with plain.")
    first, *_ = findings(some.assign(wall_time=some["training_time"] + 1))
    assert "But whole runs" not in first


def test_the_findings_are_of_a_place_whose_machine_has_its_cores() -> None:
    table = rows(TIMES, SCORES)
    many = table.assign(where="16 cores (2 real)", crowded=True)
    more = table.assign(what=table["what"] + " x")
    (speed, *_) = findings(pd.concat([many, more.assign(where="16 cores (2 real)", crowded=True), table]))
    assert " on 1 core: JAX lazy trains in 10.0 s" in speed
    (speed, *_) = findings(many)
    assert "JAX lazy trains in 10.0 s" in speed
