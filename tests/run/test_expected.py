"""Values that are not as a study expects them: the run has failed, and keeps what it measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import hpcrl as package
from hpcrl.collect.merge import collect
from hpcrl.expected import unexpected
from hpcrl.slurm.client import Slurm
from hpcrl.spec.study import Study
from tests.builders import command_study, dqn_study, planned, run_task

JOB = "mine-numpy-cpu-1"
PRINTS = [sys.executable, "-c", "import sys; print('bandwidth', sys.argv[1])", "{variant}"]


def study(values: list[str], expect: dict[str, Any], command: list[str] = PRINTS) -> dict[str, Any]:
    content = command_study(command, axes={"variant": values}, expect=expect, score="bandwidth")
    content["workload"]["metrics"] = {"stdout": {"bandwidth": r"bandwidth (\S+)"}}
    return content


@pytest.mark.parametrize(
    ("expected", "got", "said"),
    [
        ({"value": 25000, "within": "5 %"}, 12000.0, "bandwidth: expected 25000 within 5 %, got 12000"),
        ({"value": 25000, "within": "5%"}, 23749.0, "bandwidth: expected 25000 within 5 %, got 23749"),
        ({"value": 25000, "within": "5 %"}, 23750.0, None),
        ({"value": 25000, "within": "5 %"}, 26250.0, None),
        ({"value": -100, "within": "10 %"}, -109.0, None),
        ({"value": -100, "within": "10 %"}, -111.0, "bandwidth: expected -100 within 10 %, got -111"),
        ({"value": 0, "within": 0.5}, 0.6, "bandwidth: expected 0 within 0.5, got 0.6"),
        ({"value": 3, "within": 0}, 3.0, None),
        ({"at_least": 1}, 0.5, "bandwidth: expected at least 1, got 0.5"),
        ({"at_most": 1}, 1.0, None),
        ({"at_least": 1, "at_most": 2}, 3.0, "bandwidth: expected at least 1 and at most 2, got 3"),
        ({"at_least": 1}, float("nan"), "bandwidth: expected at least 1, got not a number"),
        ({"at_least": 1}, float("inf"), None),
        ({"at_most": 1}, float("inf"), "bandwidth: expected at most 1, got inf"),
        ({"at_least": 1}, None, "bandwidth: expected at least 1, got no value"),
    ],
)
def test_what_is_expected(expected: dict[str, Any], got: float | None, said: str | None) -> None:
    assert unexpected("bandwidth", expected, got) == said


def test_a_value_outside_fails_the_cell_and_its_row_keeps_the_value(tmp_path: Path) -> None:
    expect = {"bandwidth": {"value": 25000, "within": "5 %"}}
    plan = planned(tmp_path / "p", study(["12000", "24000", "nan", "none"], expect))
    codes = [run_task(plan, JOB, index).returncode for index in range(4)]
    assert codes == [1, 0, 1, 1]
    collect([plan], tmp_path / "d", Slurm())
    rows = package.load(tmp_path / "d").to_dict("records")
    found = {
        json.loads(row["config"])["variant"]: (row["outcome"], row["reason"] if row["outcome"] == "failed" else None)
        for row in rows
    }
    assert found == {
        "12000": ("failed", "bandwidth: expected 25000 within 5 %, got 12000"),
        "24000": ("completed", None),
        "nan": ("failed", "bandwidth: expected 25000 within 5 %, got not a number"),
        "none": ("failed", "bandwidth: expected 25000 within 5 %, got no value"),
    }
    assert {row["final_score"] for row in rows if row["final_score"] == row["final_score"]} == {12000.0, 24000.0}


def test_the_last_value_counts(tmp_path: Path) -> None:
    code = "import hpcrl; [hpcrl.log(bandwidth=value) for value in (1, 3)]"
    plan = planned(tmp_path / "p", study(["a"], {"bandwidth": {"at_least": 2}}, [sys.executable, "-c", code]))
    assert run_task(plan, JOB).returncode == 0


def test_a_training_is_held_against_its_final_score(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study(expect={"final_score": {"at_least": 100000}}))
    done = run_task(plan, "short-numpy-cpu-1")
    assert done.returncode == 1
    assert "final_score: expected at least 100000, got " in done.stderr
    assert not list((plan / "checkpoints").glob("*"))


def test_it_is_no_part_of_a_cells_id(tmp_path: Path) -> None:
    plans = [planned(tmp_path / name, study(["a"], {"bandwidth": each})) for name, each in
             (("p", {"at_least": 1}), ("q", {"at_most": 7}))]  # fmt: skip
    assert len({(plan / "cells.jsonl").read_text() for plan in plans}) == 1


@pytest.mark.parametrize(
    ("expect", "message"),
    [
        ({"value": 1}, "expect.x: `within` is missing"),
        ({}, "expect.x: expected either `value` and `within`, or `at_least`, `at_most` or both"),
        ({"value": 1, "at_least": 1}, "expected either"),
        ({"at_least": 1, "within": "5 %"}, "expect.x.within: `within` needs a `value`, which is missing"),
        ({"at_least": 3, "at_most": 2}, "expected `at_least` not above `at_most`, got 3 and 2"),
        ({"value": 1, "within": "a bit"}, "expect.x.within: expected a share such as `5 %`, .* got 'a bit'"),
        ({"value": 1, "within": -1}, "got -1"),
        ({"value": 0, "within": "5 %"}, "5 % of 0 is 0: give a number in the value's unit"),
        ({"at_last": 1}, "Extra inputs"),
    ],
)
def test_what_cannot_be_expected(expect: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Study.model_validate(command_study(["true"], expect={"x": expect}))


def test_a_name_that_training_does_not_have() -> None:
    with pytest.raises(ValidationError, match=r"expect\.final_scor: .* did you mean 'final_score'"):
        Study.model_validate(dqn_study(expect={"final_scor": {"at_least": 1}}))
