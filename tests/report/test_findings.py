from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import stats

from hpcrl.report.findings import MOST, findings
from hpcrl.report.score import Score
from hpcrl.report.statistics import geometric_mean, ratio
from hpcrl.report.summary import sentences

GIB = 1024**3


def rows(times: dict[str, list[float]], scores: dict[str, list[float]], memory: float = 1.0) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "cluster": "c", "where": "1 core", "what": what, "colour": what.partition(" ")[0], "dash": what.partition(" ")[2],
                "outcome": "completed", "training_time": time, "wall_time": time + 1, "final_score": scores[what][number],
                "memory": GIB * (memory if "lazy" in what else 1.0),
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

    alarms = [false_findings(seeds, 40, np.random.default_rng(seeds)) for seeds in (2, 3, 5)]
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
    assert "(one run)" in findings(one)[0]
    assert "95 %" not in " ".join(findings(one))
    assert findings(one.assign(outcome="failed")) == []


def test_a_command_has_wall_times() -> None:
    command = rows(TIMES, SCORES).assign(training_time=float("nan"), dash="")
    found = findings(command)
    assert found[0].startswith("Fastest: JAX lazy ends in 11.0 s")
    assert len(found) <= MOST
