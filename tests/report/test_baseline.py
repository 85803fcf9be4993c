from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hpcrl.collect.merge import collect
from hpcrl.report.baseline import compare, judge
from hpcrl.report.statistics import ratio
from hpcrl.report.write import read_cells
from tests.builders import cells_of, dqn_study, planned, write_record
from tests.collect.gathering import no_slurm


def dataset(directory: Path, times: list[float], scores: list[float], **header: Any) -> Path:
    plan = planned(directory / "p", dqn_study(seeds=len(times)))
    for cell, time, score in zip(cells_of(plan), times, scores, strict=True):
        write_record(plan, cell, training_time=time, final_score=score, header=header)
    collect([plan], directory / "d", no_slurm())
    return directory / "d"


def line(**changes: Any) -> pd.DataFrame:
    """Return the runs of one configuration as the report has them."""
    return pd.DataFrame(
        {"study": "s", "cluster": "c", "where": "1 core", "machine": "C", "what": "a", "outcome": "completed", "training_time": np.nan,
         "compile_time": np.nan, "memory": np.nan, "final_score": SCORES} | changes
    )  # fmt: skip


TIMES, SCORES = [10.0, 10.4, 9.8, 10.1, 10.2], [900.0, 1000, 950, 980, 1000]


@pytest.mark.parametrize(
    ("times", "scores", "regressions"),
    [
        (TIMES[::-1], SCORES, []),
        ([time * 1.5 for time in TIMES], SCORES, ["training time +50.0 %"]),
        ([time * 0.5 for time in TIMES], SCORES, []),
        (TIMES, [score / 2 for score in SCORES], ["final score -50.0 %"]),
        ([time * 1.01 for time in TIMES], SCORES, []),  # as sure as may be, and too small to speak of
        ([9.0, 30.0, 9.0, 9.5, 9.2], SCORES, []),  # one outlier
    ],
)
def test_regressions_beyond_noise(
    tmp_path: Path, hpcrl: Callable[..., Any], times: list[float], scores: list[float], regressions: list[str]
) -> None:
    old, new = dataset(tmp_path / "old", TIMES, SCORES), dataset(tmp_path / "new", times, scores)
    shown = hpcrl("report", new, "-o", tmp_path / "r", "--baseline", old, "--figures", "none")
    assert shown.code == int(bool(regressions)), shown.err
    assert [line for line in shown.out.splitlines() if line.startswith("regression")] == [
        line for line in shown.out.splitlines() if any(text in line for text in regressions)
    ]
    assert len([line for line in shown.out.splitlines() if line.startswith("regression")]) == len(regressions)
    page = (tmp_path / "r/report.html").read_text()
    assert f"{len(regressions)} regressions" in page
    assert not (tmp_path / "r/figures").exists()


def test_negative_returns_that_rise_are_no_regression(tmp_path: Path, hpcrl: Callable[..., Any]) -> None:
    """As of Pendulum-v1, where -150 is good and -1,200 is not."""
    scores = [-200.0, -180, -210, -190, -205]
    old = dataset(tmp_path / "old", TIMES, scores)
    better = dataset(tmp_path / "better", TIMES, [score / 2 for score in scores])
    worse = dataset(tmp_path / "worse", TIMES, [score * 2 for score in scores])
    options = ("-o", tmp_path / "r", "--baseline", old, "--figures", "none")
    assert hpcrl("report", better, *options).code == 0
    shown = hpcrl("report", worse, *options)
    assert shown.code == 1
    assert "final score -100.0 %" in shown.out


def test_formats_that_are_none(tmp_path: Path, hpcrl: Callable[..., Any]) -> None:
    shown = hpcrl("report", dataset(tmp_path, TIMES, SCORES), "--figures", "png,pgn")
    assert shown.code == 2
    assert "no such format; did you mean 'png'" in shown.err


def test_one_seed_and_few_seeds_cannot_be_judged(tmp_path: Path, hpcrl: Callable[..., Any]) -> None:
    one = dataset(tmp_path / "one", [10.0], [900.0])
    slow = dataset(tmp_path / "slow", [60.0], [100.0])
    options = ("-o", tmp_path / "r", "--figures", "none", "--baseline")
    shown = hpcrl("report", slow, *options, one)
    assert shown.code == 0
    assert f"Nothing could be compared with {one}." in shown.out and "No regression" not in shown.out
    assert "3 comparisons cannot be judged: too few seeds: 3 (at least 2 are needed)." in shown.out
    assert "one seed: at least 2 seeds are needed" in (tmp_path / "r/report.html").read_text()
    few = dataset(tmp_path / "few", TIMES[:3], SCORES[:3])
    worse = dataset(tmp_path / "worse", TIMES[:3], [score / 2 for score in SCORES[:3]])
    shown = hpcrl("report", worse, *options, few)
    assert "too few seeds: 2 (at least 5 are needed)" in shown.out
    page = (tmp_path / "r/report.html").read_text()
    assert "at least 5 seeds are needed for" in page and "that cannot be judged" in page


def test_times_that_are_too_noisy_to_show_a_change_cannot_be_judged(tmp_path: Path, hpcrl: Callable[..., Any]) -> None:
    noisy = [10.0, 14.0, 8.0, 12.0, 9.0]
    old, new = dataset(tmp_path / "old", noisy, SCORES), dataset(tmp_path / "new", noisy[::-1], SCORES)
    shown = hpcrl("report", new, "-o", tmp_path / "r", "--figures", "none", "--baseline", old)
    assert shown.code == 0
    (reason,) = [line for line in shown.out.splitlines() if "cannot be judged" in line and "too few seeds" in line]
    seeds = int(reason.partition("too few seeds: 1 (at least ")[2].partition(" are needed)")[0])
    page = (tmp_path / "r/report.html").read_text()
    assert f"about {seeds} seeds are needed to show a change of 10 % for " in page
    # What so many seeds of this spread show, by simulation.
    generator = np.random.default_rng(1)
    spread = float(np.log(noisy).std(ddof=1))
    shown_by = [
        ratio(*np.exp(generator.normal((np.log(1.1), 0), spread, (seeds, 2)).T), 2).low > 1  # type: ignore[operator]
        for _ in range(400)
    ]
    assert 0.7 < np.mean(shown_by) < 0.9


def test_times_on_another_kind_of_machine_cannot_be_judged(tmp_path: Path, hpcrl: Callable[..., Any]) -> None:
    old = dataset(tmp_path / "old", TIMES, SCORES)
    slow, worse = [time * 1.5 for time in TIMES], [score / 2 for score in SCORES]
    new = dataset(tmp_path / "new", slow, worse, hardware={"cpu": "D", "threads": 4, "gpus": []})
    shown = hpcrl("report", new, "-o", tmp_path / "r", "--figures", "none", "--baseline", old)
    (line,) = [line for line in shown.out.splitlines() if line.startswith("regression")]
    assert "final score -50.0 %" in line
    assert "it ran on another kind of machine (before: C, 2 threads; now: D, 4 threads): 2." in shown.out
    rows, before = (read_cells(place, None) for place in (new, old))
    found = {change.column: change.verdict for change in judge(compare(rows, before))}
    assert (found["training_time"], found["final_score"]) == ("cannot be judged", "regression")
    # Two hosts of one kind, as in continuous integration
    rows, before = (
        each.assign(machine=f"C, 2 threads, host {name}") for each, name in ((rows, "runner-7"), (before, "runner-8"))
    )
    found = {change.column: change.verdict for change in judge(compare(rows, before))}
    assert (found["training_time"], found["final_score"]) == ("regression", "regression")


@pytest.mark.parametrize(("better", "regressions"), [("lower", 0), ("higher", 1)])
def test_a_lower_score_is_a_regression_only_where_more_is_better(better: str, regressions: int) -> None:
    rows = line()
    half = rows.assign(final_score=rows["final_score"] / 2)
    found = judge(compare(half, rows, more_is_better=better == "higher"))
    assert [change.verdict for change in found].count("regression") == regressions
    back = judge(compare(rows, half, more_is_better=better == "higher"))
    assert [change.verdict for change in back].count("regression") == 1 - regressions


@pytest.mark.parametrize(
    ("column", "before", "now", "verdict", "said"),
    [
        ("final_score", [0.7, 0.8, 0.75, 0.9, 0.85], [0.0] * 5, "regression", "final score -100.0 % (p = 0.0079)"),
        ("final_score", [0.0] * 5, [5.0] * 5, "improvement", "final score from 0 to 5 (p = 0.0079)"),
        ("final_score", [0.0] * 5, [0.015] * 5, "improvement", "final score from 0 to 0.015 (p = 0.0079)"),
        ("final_score", [0.001] * 5, [-0.5, -0.4, -0.6, -0.5, -0.5], "regression", "final score from 0.001 to -0.500 (p = 0.0079)"),
        ("final_score", [0.0] * 5, [0.0, 0.0, 0.0, 0.0, 1.0], "no change shown", "final score from 0 to 0 (p = 1)"),
        ("compile_time", [0.0] * 5, [5.0] * 5, "cannot be judged", "compile time from 0 to 5 s"),
        ("compile_time", [5.0] * 5, [0.0] * 5, "cannot be judged", "compile time -100.0 %"),
        ("compile_time", [0.0] * 5, [0.0] * 5, "", ""),
    ],
)  # fmt: skip
def test_changes_from_0_and_to_0(column: str, before: list[float], now: list[float], verdict: str, said: str) -> None:
    new, old = (line(**{"final_score": np.nan, column: values}) for values in (now, before))
    found = judge(compare(new, old))
    assert [change.verdict for change in found] == [verdict] * bool(verdict)
    assert [str(change) for change in found] == [f"s, c, a, 1 core: {said}"] * bool(said)


def test_a_median_that_stays_is_no_change() -> None:
    """Scores may differ where their medians do not."""
    old = line(final_score=[0.0, 0.0, 0.0, 0.0, 0.0] * 4)
    new = line(final_score=[0.0, 0.0, 0.0, 1.0, 1.0] * 4)
    (found,) = judge(compare(new, old))
    assert (found.estimate.p or 1) < 0.05 and found.verdict == "no change shown"


TIME, RUNS = "training time", "completed runs"
LOST, NO_NAME = "none of 5 runs completed", "the new dataset has no run of this name"
D = {"where": "1 core (D)", "machine": "D"}


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ([{}, {"what": "b"}], [{}, {"what": "b", "outcome": "failed"}], {("c, a, 1 core", TIME, ""), ("c, b, 1 core", RUNS, LOST)}),
        ([{}], [{"outcome": "failed"}], {("c, a, 1 core", RUNS, LOST)}),
        ([{}, {"what": "b"}], [{}, {"what": "b n 5"}], {("c, a, 1 core", TIME, ""), ("c, b, 1 core", RUNS, NO_NAME)}),
        # Names have the kind of machine where there are several.
        (
            [{}],
            [{"where": "1 core (C)"}, D],
            {("c, a, 1 core (C)", TIME, ""), ("c, a, 1 core (D)", TIME, "it ran on another kind of machine (before: C; now: D)")},
        ),
        ([{"where": "1 core (C)"}, D], [{"machine": "D"}], {("c, a, 1 core", TIME, ""), ("c, a, 1 core (C)", RUNS, NO_NAME)}),
        ([{"cluster": "c (host a)", "machine": "C, host a"}], [{"machine": "C, host b"}], {("c, a, 1 core", TIME, "")}),
    ],
)  # fmt: skip
def test_every_line_of_the_baseline_is_compared_or_named(
    before: list[dict[str, Any]], now: list[dict[str, Any]], said: set[tuple[str, str, str]]
) -> None:
    old, new = (
        pd.concat([line(training_time=TIMES, **each) for each in some], ignore_index=True) for some in (before, now)
    )
    changes = [change for change in compare(new, old) if change.column != "final_score"]
    assert {(change.line.removeprefix("s, "), change.measure, change.why) for change in changes} == said
    gone = [change for change in judge(changes) if change.measure == RUNS]
    assert all(
        change.size == "from 5 to 0" and (change.why == LOST) == (change.verdict == "regression") for change in gone
    )


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        (["failed", "timeout", "oom"], "regression"),
        (["failed", "preempted", "failed"], "cannot be judged"),
        (["running"] * 3, "cannot be judged"),
        (["completed", "failed", "failed"], "cannot be judged"),
    ],
)
def test_a_line_whose_runs_all_fail_now_is_a_regression(outcomes: list[str], verdict: str) -> None:
    new = line(training_time=TIMES).iloc[:3].assign(outcome=outcomes)
    (change, *_) = judge(compare(new, line(training_time=TIMES).iloc[:3]))
    assert change.verdict == verdict
    assert change.why.startswith("none of 3 runs completed") == (outcomes.count("completed") == 0)


@pytest.mark.parametrize(
    ("before", "now", "verdict", "text"),
    [
        ({}, {}, "", ""),
        ({}, {"failed": 20}, "regression", "from 25 of 25 to 5 of 25"),
        ({}, {"timeout": 10, "oom": 10}, "regression", "from 25 of 25 to 5 of 25"),
        ({"failed": 20}, {}, "improvement", "from 5 of 25 to 25 of 25"),
        ({}, {"failed": 4}, "cannot be judged", "from 25 of 25 to 21 of 25"),
        ({"failed": 4}, {"failed": 4}, "cannot be judged", "from 21 of 25 to 21 of 25"),
        # Runs that were stopped from outside do not count.
        ({}, {"preempted": 5, "cancelled": 5, "node_fail": 4, "lost": 4, "running": 4}, "", ""),
        ({}, {"failed": 1, "lost": 19}, "cannot be judged", "from 25 of 25 to 5 of 6"),
    ],
)
def test_numbers_of_failed_runs_are_judged(
    before: dict[str, int], now: dict[str, int], verdict: str, text: str
) -> None:
    new, old = (
        line(training_time=TIMES * 5, final_score=SCORES * 5).assign(
            outcome=[name for name, number in ended.items() for _ in range(number)]
            + ["completed"] * (25 - sum(ended.values()))
        )
        for ended in (now, before)
    )
    found = [change for change in judge(compare(new, old)) if change.measure == RUNS]
    assert [(change.verdict, change.text) for change in found] == [(verdict, text)] * bool(verdict)
    for change in found:
        few = f"{len(change.old)} runs before and {len(change.new)} now are too few to show"
        assert change.why.startswith(few) == (verdict == "cannot be judged")


def test_four_of_five_runs_that_fail_are_judged_among_all_comparisons() -> None:
    """The p of Fisher's exact test is 0.048: enough alone, and not beside two others."""
    new, old = line(training_time=TIMES, final_score=np.nan), line(training_time=TIMES, final_score=np.nan)
    new = new.assign(outcome=["failed"] * 4 + ["completed"])
    (alone,) = judge([change for change in compare(new, old) if change.measure == RUNS])
    assert (alone.verdict, str(alone)) == (
        "regression",
        "s, c, a, 1 core: completed runs from 5 of 5 to 1 of 5 (p = 0.048)",
    )
    beside = compare(line(memory=TIMES), line(memory=TIMES))
    (among,) = [change for change in judge([*compare(new, old), *beside]) if change.measure == RUNS]
    assert (among.verdict, among.why) == (
        "cannot be judged",
        "5 runs before and 5 now are too few to show a change of how many complete for 3 comparisons",
    )


def test_a_single_failed_run_does_not_weaken_the_other_tests() -> None:
    """One failure among ten runs is significant in neither group, so it is no comparison for Holm's correction."""
    new = line().assign(outcome=["failed", *["completed"] * 4])
    (found,) = [change for change in compare(new, line()) if change.measure == RUNS]
    assert found.estimate.p is None and found.why
    assert judge([found])[0].verdict == "cannot be judged"


def test_failures_on_one_of_two_kinds_of_machines_say_nothing_about_the_kind_that_is_gone() -> None:
    both = [line(**{"where": "1 core (C)"}), line(**D)]
    new = line(**D).assign(outcome=["failed"] * 2 + ["completed"] * 3)
    found = {
        (change.line, change.text, change.why)
        for change in compare(new, pd.concat(both, ignore_index=True))
        if change.measure == RUNS
    }
    few = "10 runs before and 5 now are too few to show a change of how many complete"
    assert found == {
        ("s, c, a, 1 core (C)", "from 5 to 0", NO_NAME),
        ("s, c, a, 1 core", "from 10 of 10 to 3 of 5", few),
    }


def test_two_datasets_of_one_distribution_are_told_apart_in_one_report_of_twenty() -> None:
    from benchmarks.coverage import false_alarms

    alarms = [false_alarms(seeds, 40, np.random.default_rng(seeds)) for seeds in (2, 3, 5)]
    assert max(alarms) <= 0.15  # 5 %, and 40 trials
