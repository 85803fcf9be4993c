"""Axes beside the product: zipped, drawn at random, and values computed from others."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import hpcrl as package
from hpcrl.collect.merge import collect
from hpcrl.errors import SpecError, UsageError
from hpcrl.plan.expand import Point, expand
from hpcrl.slurm.client import Slurm
from hpcrl.spec.axes import Random
from hpcrl.spec.computed import ComputeError, expression
from hpcrl.spec.library import Library
from hpcrl.spec.study import Study
from tests.builders import cells_of, command_study, dqn_study, planned, run_task, write_yaml

DRAW = {
    "learning_rate": {"log_uniform": [1e-4, 1e-2]},
    "batch_size": {"choice": [32, 64]},
    "gamma": {"uniform": [0.9, 0.999]},
    "updates": {"integers": [1, 64]},
}


def points(content: dict[str, Any]) -> list[Point]:
    return list(expand(Study.model_validate(content)))


def faults(tmp_path: Path, content: dict[str, Any]) -> list[str]:
    """Return the faults with their lines, without the name of the file."""
    file = write_yaml(tmp_path / "s.yaml", content)
    try:
        Library().study(str(file))
    except SpecError as error:
        lines = file.read_text().splitlines()
        found = []
        for problem in error.problems:
            number, _, text = problem.removeprefix(f"{file}:").partition(": ")
            found.append(f"{lines[int(number) - 1].strip(' -')} <- {text}")
        return found
    return []


# zip


def test_zipped_keys_go_together() -> None:
    content = command_study(["run", "{a}", "{b}"], axes={"c": ["u", "v"]}, zip=[{"a": [1, 2, 3], "b": ["x", "y", "z"]}])
    assert [each.config for each in points(content)] == [
        {"c": c, "a": a, "b": b, "seed": 1} for c in "uv" for a, b in ((1, "x"), (2, "y"), (3, "z"))
    ]


def test_two_zips_are_two_axes_and_set_resources() -> None:
    content = command_study(["run"], axes={}, zip=[{"a": [1, 2], "cpus": [1, 4]}, {"d": [5, 6], "e": [7, 8]}])
    assert [(each.config["a"], each.config["e"], each.resources.cpus) for each in points(content)] == [
        (1, 7, 1), (1, 8, 1), (2, 7, 4), (2, 8, 4),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("zipped", "said"),
    [
        ({"a": [1, 2], "b": [1]}, "expected the same number of values for each key, got: a has 2, b has 1"),
        ({"a": [1, 2]}, "expected at least two keys"),
        ({"a": [], "b": []}, "has no values"),
        ({"a": [1, 1], "b": [2, 2]}, "repeats a combination"),
        ({"variant": [1, 2], "b": [1, 2]}, "zip.0.variant: variant is already set by axes.variant"),
        ({"seed": [1, 2], "b": [1, 2]}, "zip.0.seed: `seed` is not an axis"),
        ({"a b": [1, 2], "b": [1, 2]}, "zip.0.a b: 'a b' is not a name"),
        ({"cpus": [1, 0], "b": [1, 2]}, "cpus: [1, 0] <- zip.0.cpus.1: expected a number of at least 1, got 0"),
    ],
)
def test_wrong_zips(tmp_path: Path, zipped: dict[str, Any], said: str) -> None:
    found = faults(tmp_path, command_study(["run"], zip=[zipped]))
    assert len(found) == 1 and said in found[0]


# random


def test_draws_are_the_same_everywhere_and_forever() -> None:
    drawn = Random.model_validate({"points": 3, "seed": 1, "draw": DRAW}).drawn()
    assert drawn == [
        {"learning_rate": 0.000178863, "batch_size": 32, "gamma": 0.935395, "updates": 26},
        {"learning_rate": 0.00384491, "batch_size": 32, "gamma": 0.970274, "updates": 7},
        {"learning_rate": 0.00203334, "batch_size": 32, "gamma": 0.920526, "updates": 49},
    ]


def test_more_points_begin_with_the_same() -> None:
    few, many = (Random.model_validate({"points": n, "seed": 7, "draw": DRAW}).drawn() for n in (20, 200))
    assert many[:20] == few
    assert few != Random.model_validate({"points": 20, "seed": 8, "draw": DRAW}).drawn()


def test_draws_spread_over_their_ranges() -> None:
    drawn = Random.model_validate({"points": 2000, "draw": DRAW}).drawn()
    rates = [float(each["learning_rate"]) for each in drawn]
    assert min(rates) >= 1e-4 and max(rates) <= 1e-2
    assert 900 < sum(rate < 1e-3 for rate in rates) < 1100  # half of the draws below the geometric middle
    assert {each["updates"] for each in drawn} == set(range(1, 65))
    assert 900 < sum(each["batch_size"] == 32 for each in drawn) < 1100


def test_the_widest_range_is_drawn_from() -> None:
    drawn = Random.model_validate({"points": 9, "draw": {"a": {"uniform": [-1.7e308, 1.7e308]}}}).drawn()
    assert len({float(each["a"]) > 0 for each in drawn}) == 2


def test_every_point_of_a_small_space_is_drawn_once() -> None:
    drawn = Random.model_validate({"points": 6, "draw": {"a": {"choice": ["x", "y"]}, "b": {"integers": [1, 3]}}})
    assert sorted(map(str, drawn.drawn())) == sorted(str({"a": a, "b": b}) for a in "xy" for b in (1, 2, 3))


@pytest.mark.parametrize(
    ("random", "said"),
    [
        ({"points": 7, "draw": {"a": {"choice": ["x", "y"]}, "b": {"integers": [1, 3]}}}, "random.points: expected at most 6"),
        ({"points": 2, "draw": {"a": {"uniform": [1.0, 1.00000001]}}}, "1000 draws gave no new point after 1 points"),
        ({"points": 2, "draw": {"a": {"uniform": [2, 1]}}}, "random.draw.a.uniform: expected the minimum first"),
        ({"points": 2, "draw": {"a": {"log_uniform": [0, 1]}}}, "random.draw.a.log_uniform: expected numbers greater than 0"),
        ({"points": 2, "draw": {"a": {}}}, "random.draw.a: expected one of uniform, log_uniform, integers, choice, got none"),
        ({"points": 2, "draw": {"a": {"choice": [1, 2], "integers": [1, 2]}}}, "got integers and choice"),
        ({"points": 2, "draw": {"a": {"choise": [1, 2]}}}, "did you mean 'choice'"),
        ({"points": 2, "draw": {"a": {"choice": [1, 1]}}}, "repeats a value"),
        ({"points": 2, "draw": {"a": {"integers": [0, 2**63]}}}, "expected a number less than 9223372036854775808"),
        ({"points": 0, "draw": {"a": {"choice": [1, 2]}}}, "expected a number of at least 1, got 0"),
        ({"points": 2, "draw": {"variant": {"choice": [1, 2]}}}, "variant is already set by axes.variant"),
        ({"points": 2, "draw": {"cpus": {"integers": [-1, 0]}}}, "random.draw.cpus: expected a number of at least 1"),
    ],
)  # fmt: skip
def test_wrong_draws(tmp_path: Path, random: dict[str, Any], said: str) -> None:
    assert any(said in each for each in faults(tmp_path, command_study(["run"], random=random)))


def test_a_drawn_hyperparameter_is_checked(tmp_path: Path) -> None:
    content = dqn_study(
        random={"points": 3, "draw": {"gamma": {"uniform": [1.5, 2]}, "learning_rte": {"uniform": [0, 1]}}}
    )
    found = faults(tmp_path, content)
    assert any(each.startswith("gamma") and "expected a number from 0 to 1" in each for each in found)
    assert any(each.startswith("learning_rte") and "did you mean 'learning_rate'" in each for each in found)
    (one, two) = points(dqn_study(random={"points": 2, "draw": {"gamma": {"uniform": [0.9, 1]}}}))
    assert one.config["gamma"] != two.config["gamma"]


def test_cells_of_all_axes_are_counted() -> None:
    content = command_study(["run"], zip=[{"a": list(range(1000)), "b": list(range(1000))}], seeds=2)
    content["random"] = {"points": 1000, "draw": {"c": {"uniform": [0, 1]}}}
    with pytest.raises(UsageError, match="expected at most 1,000,000 cells, got 2,000,000"):
        points(content)


# computed


def test_computed_values_are_values_of_the_cell() -> None:
    content = command_study(
        ["run", "{total}", "{name}"],
        axes={"batch": [8, 16], "nodes": [1, 2]},
        computed={"tasks": "nodes * 4", "total": "tasks * batch", "name": "'b' ~ total if total > 60 else 'small'"},
    )
    assert [(each.resources.tasks, each.config["total"], each.config["name"]) for each in points(content)] == [
        (4, 32, "small"), (8, 64, "b64"), (4, 64, "b64"), (8, 128, "b128"),
    ]  # fmt: skip


def test_a_value_may_depend_on_the_seed() -> None:
    content = command_study(["run", "{port}"], computed={"port": "5000 + seed"}, seeds=[3, 4])
    assert [each.config["port"] for each in points(content)] == [5003, 5004]


def test_hyperparameters_are_computed_and_their_defaults_known() -> None:
    content = dqn_study(axes={"framework": ["numpy"], "factor": [1, 2]}, computed={"batch_size": "batch_size * factor"})
    assert [each.config["batch_size"] for each in points(content)] == [64, 128]


def test_exclude_knows_computed_values(tmp_path: Path) -> None:
    content = command_study(["run"], axes={"a": [0, 1, 2]}, computed={"b": "6 // a"}, exclude=[{"a": 0}, {"b": 3}])
    assert [each.config["a"] for each in points(content)] == [1]  # and a = 0 divides nothing
    found = faults(tmp_path, content | {"exclude": [{"a": 0}, {"b": 4}]})
    assert len(found) == 1 and "exclude.1.b: the axis has no value 4" in found[0]


@pytest.mark.parametrize(
    ("computed", "said"),
    [
        ({"b": "varant ~ 1"}, "computed: {b: varant ~ 1} <- computed.b: no value 'varant'; did you mean 'variant'?"),
        ({"b": "c + 1", "c": "1"}, "c is computed later: move it up"),
        ({"b": "cpus / 0"}, "divides by zero"),
        ({"b": "0.1 ** -400"}, "is too large for a number"),
        ({"b": "10**10**10"}, "expected a whole number of at most 63 bits"),
        ({"b": "2.0**1e9"}, "too large"),
        ({"b": "'a' * 10**9"}, "*: expected two numbers, got the text 'a'"),
        ({"b": "'%99999999d' % 1"}, "%: expected two numbers"),
        ({"b": "range(10**9)"}, "call is not allowed"),
        ({"b": "variant.__class__"}, "getattr is not allowed"),
        ({"b": "variant|center(1000000000)"}, "has no filter 'center'"),
        ({"b": "{{ variant }}"}, "without braces"),
        ({"b": " "}, "expected an expression, got an empty text"),
        ({"b": "1 +"}, "is not an expression"),
        ({"b": "(" * 200 + "1" + ")" * 200}, "is not an expression, or is nested too deeply"),
        ({"b": "9" * 501}, "at most 500 characters"),
        ({"b": "[1, 2]"}, "expected a number, a text, true or false, got a list"),
        ({"b": "1 if variant == 'z'"}, "got a Undefined"),
        ({"b": "(-1) ** 0.5"}, "not a real number"),
        ({"cpus": "1 - seed"}, "computed.cpus: expected a number of at least 1, got 0"),
        ({"variant": "1"}, "variant is already set by axes.variant"),
        ({"seed": "1"}, "`seed` is not an axis"),
        ({"framework": "'numpy'"}, "framework cannot be computed"),
        ({"b": 3}, "expected a text, got 3"),
        ({"x" + "y" * n: ("variant" if n == 0 else f"x{'y' * (n - 1)}") + "".join(f" ~ x{'y' * (n - 1)}" if n else " ~ variant" for _ in range(9)) for n in range(9)}, "expected a text of at most 1000 characters"),
    ],
)  # fmt: skip
def test_wrong_expressions_end_at_once(tmp_path: Path, computed: dict[str, Any], said: str) -> None:
    begun = time.process_time()
    found = faults(tmp_path, command_study(["run"], computed=computed))
    assert time.process_time() - begun < 5
    assert any(said in each for each in found), found


def test_a_computed_hyperparameter_is_checked(tmp_path: Path) -> None:
    found = faults(tmp_path, dqn_study(computed={"gamma": "cpus * 2", "gama": "1"}))
    assert any("computed.gamma: expected a number from 0 to 1, got 2" in each for each in found)
    assert any("computed.gama: no hyperparameter or resource 'gama'; did you mean 'gamma'?" in each for each in found)


def test_an_expression_sees_no_objects() -> None:
    with pytest.raises(ComputeError, match="is missing in some cells"):
        expression("a + 1").value({"b": 1})
    for text in ("self", "loop", "namespace", "cycler", "lipsum"):
        with pytest.raises(ComputeError):
            expression(text).value({"b": 1})


# all the way


def test_from_the_study_to_the_dataset(tmp_path: Path) -> None:
    content = command_study(
        [sys.executable, "-c", "import hpcrl, sys; hpcrl.log(score=float(sys.argv[1]))", "{total}"],
        axes={},
        zip=[{"a": [1, 2], "name": ["one", "two"]}],
        random={"points": 2, "seed": 3, "draw": {"rate": {"integers": [10, 99]}}},
        computed={"total": "a * rate"},
        score="score",
    )
    plan = planned(tmp_path / "p", content)
    assert len(cells_of(plan)) == 4
    for index in range(4):
        assert run_task(plan, "mine-numpy-cpu-1", index).returncode == 0
    collect([plan], tmp_path / "d", Slurm())
    for row in package.load(tmp_path / "d").to_dict("records"):
        config = json.loads(row["config"])
        assert row["final_score"] == config["total"] == config["a"] * config["rate"]
    runs = package.load(tmp_path / "d", "runs")
    assert {"a", "name", "rate", "total"} <= set(runs.columns)
    again = planned(tmp_path / "q", content | {"random": content["random"] | {"points": 3}})
    assert {each["id"] for each in cells_of(plan)} < {each["id"] for each in cells_of(again)}


def test_the_command_line_sets_and_shows_them(tmp_path: Path) -> None:
    content = command_study(
        ["run"], zip=[{"a": [1, 2], "b": ["x", "y"]}], random={"points": 5, "draw": {"c": {"uniform": [0, 1]}}}
    )
    content["computed"] = {"d": "a * 2"}
    file = write_yaml(tmp_path / "study.yaml", content)

    def hpcrl(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "hpcrl", *words], capture_output=True, text=True, check=True, cwd=tmp_path
        )
        return done.stdout

    shown = hpcrl("study", "show", str(file))
    assert "  a, b: 1, x | 2, y\n  c: 5 points drawn at random (seed 0)\n  d = a * 2\n" in shown
    assert "10 cells" in hpcrl("study", "check", str(file))
    said = hpcrl("plan", "--study", str(file), "--set", "random.points=7", "--set", "computed.d=a*3", "--dry-run")
    assert "14 cells" in said
    schema = json.loads(hpcrl("schema", "study"))
    assert {"zip", "random", "computed", "expect"} <= set(schema["properties"])
