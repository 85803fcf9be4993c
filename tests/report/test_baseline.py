from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcrl.collect.merge import collect
from tests.builders import cells_of, dqn_study, planned, write_record
from tests.collect.gathering import no_slurm


def dataset(directory: Path, times: list[float], scores: list[float]) -> Path:
    plan = planned(directory / "p", dqn_study(seeds=len(times)))
    for cell, time, score in zip(cells_of(plan), times, scores, strict=True):
        write_record(plan, cell, training_time=time, final_score=score)
    collect([plan], directory / "d", no_slurm())
    return directory / "d"


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
