"""What the terminal and the first screen say about a comparison with a baseline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcrl.collect.merge import collect
from hpcrl.report.against import first_sentences, incomparable, none_worse, reasons, regressions
from hpcrl.report.baseline import NOT_JUDGED, NOTHING_SHOWN, REGRESSION, Change, compare, judge
from hpcrl.report.statistics import Estimate
from tests.builders import cells_of, dqn_study, planned, write_record
from tests.collect.gathering import no_slurm
from tests.report.test_baseline import SCORES, TIMES, dataset, line

OLD = Path("old")


def change(number: int = 0, **changes: Any) -> Change:
    estimate = Estimate(0.5, 0.4, 0.6, p=0.001)
    values = np.ones(5)
    found = Change("s", f"s, c, a{number}, 1 core", "memory", "memory", estimate, False, values, values, REGRESSION)
    return replace(found, **changes)


def told(page: Path) -> str:
    """Return what the page says under "What was found"."""
    return page.read_text().partition("<h3>What was found</h3>")[2].partition("</ul>")[0]


def test_runs_that_fail_now_are_named_where_there_is_no_regression(tmp_path: Path, hpcrl: Callable[..., Any]) -> None:
    old = dataset(tmp_path / "old", TIMES, SCORES)
    plan = planned(tmp_path / "p", dqn_study(seeds=5))
    for number, cell in enumerate(cells_of(plan)):
        write_record(
            plan,
            cell,
            outcome="failed" if number < 3 else "completed",
            training_time=10.0 + number / 10,
            final_score=900.0,
        )
    collect([plan], tmp_path / "new", no_slurm())
    shown = hpcrl("report", tmp_path / "new", "-o", tmp_path / "r", "--figures", "none", "--baseline", old)
    assert shown.code == 0
    more = (
        "More runs fail than before, but too few ran to judge it: "
        "short, workstation, NumPy eager, 1 core: completed runs from 5 of 5 to 2 of 5."
    )
    assert f"No regression beyond noise in 2 comparisons with {old}." in shown.out
    assert more in shown.out and "too few runs to compare failures: 1" in shown.out
    page = tmp_path / "r/report.html"
    assert more in told(page)
    assert "completed runs</td><td>from 5 of 5 to 2 of 5</td>" in page.read_text()


def test_the_first_screen_has_five_regressions_or_says_that_there_is_none() -> None:
    worse = [change(number) for number in range(7)]
    found = first_sentences(worse, OLD)
    assert found[0] == "Regression against old: s, c, a0, 1 core: memory +50.0 % (95 % interval +40.0 to +60.0 %)."
    assert len(found) == 6 and found[-1] == "2 more regressions against old."
    assert len(first_sentences(worse[:5], OLD)) == 5
    assert len(regressions(worse)) == 7
    same, unjudged = change(verdict=NOTHING_SHOWN), change(verdict=NOT_JUDGED, why="too noisy")
    assert first_sentences([same, same], OLD) == ["No regression beyond noise in 2 comparisons with old."]
    assert first_sentences([same, unjudged], OLD) == [
        "No regression beyond noise in 1 comparison with old; 1 cannot be judged."
    ]
    fails = change(
        verdict=NOT_JUDGED, column="outcome", estimate=Estimate(-0.2, None, None), text="from 5 of 5 to 4 of 5"
    )
    told = "More runs fail than before, but too few ran to judge it: s, c, a0, 1 core: memory from 5 of 5 to 4 of 5."
    for other in (same, change()):
        assert first_sentences([other, fails], OLD)[1:] == [told]
    assert first_sentences([fails] * 7, OLD)[-1].endswith("; and 2 more.")
    assert first_sentences([], OLD) == first_sentences([unjudged], OLD) == ["Nothing could be compared with old."]


def test_the_page_begins_with_the_regressions_and_counts_what_it_does_not_list(
    tmp_path: Path, hpcrl: Callable[..., Any]
) -> None:
    old, new = (dataset(tmp_path / name, TIMES, scores) for name, scores in (("old", SCORES), ("new", [400.0] * 5)))
    page = tmp_path / "r/report.html"
    options = ("-o", page.parent, "--figures", "none", "--baseline", old)
    assert hpcrl("report", new, *options).code == 1
    first, second, *_ = told(page).split("<li>")[1:]
    assert first.startswith(f"Regression against {old}: ") and "final score -59.2 %" in first
    assert not second.startswith("Regression")
    assert "2 comparisons without a change beyond noise are not listed." in page.read_text()
    assert hpcrl("report", old, *options).code == 0
    assert f"<li>No regression beyond noise in 3 comparisons with {old}.</li>" in told(page)


def test_reasons_are_grouped_with_the_largest_number_of_seeds() -> None:
    why = {"verdict": NOT_JUDGED, "kind": "too few seeds"}
    some = [
        change(),
        *(change(**why, why=f"about {needed} seeds are needed", needed=needed) for needed in (28, 702)),
        change(verdict=NOT_JUDGED, why="too noisy to show a change of 10 %"),
    ]
    assert reasons(some) == (
        "3 comparisons cannot be judged: too few seeds: 2 (at least 702 are needed), too noisy to show a change of 10 %: 1."
    )
    assert reasons([change()]) == ""


@pytest.mark.parametrize(("before", "now", "compared"), [(0.01, 0.03, 0), (0.01, 0.2, 1), (0.2, 0.01, 1)])
def test_compile_times_that_nobody_notices_are_not_compared(before: float, now: float, compared: int) -> None:
    noise = np.array([1.0, 1.1, 0.9, 1.05, 0.95])
    new, old = (line(final_score=np.nan, compile_time=time * noise) for time in (now, before))
    assert len(compare(new, old)) == compared


@pytest.mark.parametrize(
    ("now", "before", "why"),
    [
        ({}, {"study": "other"}, "they have no study in common (new: s; old: other)"),
        ({"outcome": "failed"}, {"outcome": "failed"}, "new has no completed run"),
        ({}, {"outcome": "failed"}, "old has no completed run"),
        ({"outcome": "running"}, {}, "new has no completed run"),
        ({"what": "b"}, {}, "no completed run of the two has the same configuration"),
        ({"outcome": "failed"}, {}, ""),  # a regression
        ({}, {}, ""),
    ],
)
def test_why_nothing_could_be_compared(now: dict[str, str], before: dict[str, str], why: str) -> None:
    new, old = line(**now), line(**before)
    changes = judge(compare(new, old[old["study"] == "s"]))
    assert incomparable(changes, new, old, Path("new"), OLD) == why
    assert none_worse(changes, OLD, why).startswith(f"Nothing could be compared with old: {why}." if why else "No")


def test_a_gate_does_not_pass_where_nothing_could_be_compared(tmp_path: Path, hpcrl: Callable[..., Any]) -> None:
    plan = planned(tmp_path / "p", dqn_study(seeds=2, name="another"))
    for cell in cells_of(plan):
        write_record(plan, cell)
    collect([plan], tmp_path / "another", no_slurm())
    new = dataset(tmp_path / "new", TIMES, SCORES)
    options = ("-o", tmp_path / "r", "--figures", "none", "--baseline")
    shown = hpcrl("report", new, *options, tmp_path / "another")
    assert shown.code == 1
    assert f"another: they have no study in common ({new}: short; {tmp_path / 'another'}: another)." in shown.out
    failed = planned(tmp_path / "f", dqn_study(seeds=2))
    for cell in cells_of(failed):
        write_record(failed, cell, outcome="failed")
    collect([failed], tmp_path / "failed", no_slurm())
    shown = hpcrl("report", tmp_path / "failed", *options, tmp_path / "failed")
    assert shown.code == 1
    assert (
        f"Nothing could be compared with {tmp_path / 'failed'}: {tmp_path / 'failed'} has no completed run."
        in shown.out
    )
