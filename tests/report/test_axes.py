"""Figures over the axes of a small study of a command."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pytest

from hpcrl.report.axes import axes, of_algorithms
from hpcrl.report.design import colours
from hpcrl.report.figures import axes as drawing
from hpcrl.report.figures.drawing import Figure
from hpcrl.report.score import Score

SIZES = (1, 2, 3, 4)


def runs(*configs: dict[str, Any], colour: str = "", **columns: Any) -> pd.DataFrame:
    """Return two repeats of each configuration, which takes as many seconds as its size.

    Args:
        colour: the axis that colours show; by default each configuration has a colour, as in a small study.
    """
    rows = []
    for config in configs:
        name = f"{colour} {config[colour]}" if colour else " ".join(f"{key} {value}" for key, value in config.items())
        rows += [
            {
                "config": json.dumps(config | {"seed": seed}), "seed": seed, "cluster": "sol", "cpus": 1, "gpus": 0, "gpu_type": None, "nodes": 1, "tasks": 1,
                "parallelism": "none", "machine": "C, 2 threads", "outcome": "completed", "final_score": 10.0 * config["size"],
                "training_time": float(config["size"]), "wall_time": 9.0, "colour": name, "dash": "", "crowded": False,
            }
            | columns
            for seed in (1, 2)
        ]  # fmt: skip
    table = pd.DataFrame(rows)
    return table.assign(hex=table["colour"].map(colours(table["colour"])))


def drawn(rows: pd.DataFrame) -> dict[str, Figure]:
    found = drawing.figures(rows, axes(rows), Score("speed", command=True))
    return {figure.name: figure for figure in found if figure}


def names(figure: Figure) -> list[str]:
    return [str(name) for panel in figure.panels for name in panel.values["runs of"]]


def test_an_axis_of_a_command_is_not_overwritten_by_what_it_asked_for() -> None:
    rows = runs(*({"size": 1, "ranks": ranks, "cores": 1} for ranks in (1, 2, 4)))
    assert axes(rows)["ranks"].tolist() == [1, 1, 2, 2, 4, 4]
    assert axes(rows.assign(cpus=[1, 1, 2, 2, 4, 4]))["cpus"].tolist() == [1, 1, 2, 2, 4, 4]


def test_what_an_algorithm_settles_is_told_of_it_and_is_no_axis() -> None:
    ppo, dqn = {"algorithm": "ppo", "steps": 20, "epochs": 4}, {"algorithm": "dqn", "steps": 10, "rate": 0.25}
    rows = runs(*(config | {"size": size} for config in (ppo, dqn) for size in SIZES))
    assert list(axes(rows)) == ["algorithm", "size"]
    assert of_algorithms(rows) == {"dqn": {"rate": "0.25", "steps": "10"}, "ppo": {"epochs": "4", "steps": "20"}}
    further = pd.concat([rows, runs(ppo | {"size": 1, "steps": 30})], ignore_index=True)
    assert list(axes(further)) == ["algorithm", "steps", "size"]
    assert of_algorithms(further)["ppo"] == {"epochs": "4"}
    assert of_algorithms(runs(ppo | {"size": 1}, ppo | {"size": 2})) == {}


@pytest.mark.parametrize(
    ("others", "colour", "lines", "over"),
    [
        ([{}], "", {"all"}, ""),
        ([{"method": "a"}, {"method": "b"}], "", {"method a", "method b"}, ""),
        ([{"method": "a"}, {"method": "b"}, {"method": "c"}], "method", {"method a", "method b", "method c"}, ""),
        ([{"method": str(number)} for number in range(9)], "", {"all"}, "method"),
    ],
)
def test_points_of_a_numeric_axis_are_joined_to_lines(
    others: list[dict[str, str]], colour: str, lines: set[str], over: str
) -> None:
    """Where each configuration has a colour, each line would be a point."""
    rows = runs(*({"size": size} | other for size in SIZES for other in others), colour=colour)
    for figure in (drawn(rows)["score-by-size"], drawn(rows)["time-by-size"]):
        assert sorted(names(figure)) == sorted(list(lines) * len(SIZES))
        assert {key.name for key in figure.legend} == (lines if len(lines) > 1 else set())
        said = f"over all values of {over} and seed" if over else "over seeds"
        assert f"with the same size{', ' if over else ' '}{said};" in figure.text


def test_a_colour_of_one_value_of_an_axis_has_no_map_of_its_own() -> None:
    rows = runs(*({"size": size, "rate": rate} for size in SIZES for rate in (1, 2, 3)), colour="size")
    (panel,) = drawn(rows)["score-map"].panels
    assert len(panel.values) == 12


@pytest.mark.parametrize("other", [{"cluster": "laptop"}, {"machine": "D, 2 threads"}])
def test_times_on_two_machines_are_not_one_line(other: dict[str, str]) -> None:
    """The second one is slow, and lacks the largest size. Scores do not depend on the machine."""
    configs = [{"size": size, "rate": rate} for size in SIZES for rate in (1, 2, 3)]
    there = runs(*configs[:9], colour="rate", **other)
    rows = pd.concat([runs(*configs, colour="rate"), there.assign(training_time=100.0)], ignore_index=True)
    found = drawn(rows)
    (score,) = found["score-by-size"].panels
    assert score.values["runs"].tolist() == [4, 4, 4, 2] * 3
    time = found["time-by-size"]
    assert len(time.panels) == 2 and "Each cluster and kind of machine has a panel." in time.text
    medians = {panel.title: sorted(set(panel.values.iloc[:, 2])) for panel in time.panels}
    name = other.get("cluster") or "sol (D)"
    assert medians == {"sol" if "cluster" in other else "sol (C)": [1, 2, 3, 4], name: [100]}
    (field,) = found["time-map"].panels
    assert sorted(field.values.iloc[:, 2]) == sorted([1.0, 2, 3, 4] * 3)
    assert f"Only runs on {'sol' if 'cluster' in other else 'sol (C)'} are drawn" in found["time-map"].text
    assert "Only runs" not in found["score-map"].text


def test_times_on_more_cores_than_the_machine_has_are_not_drawn_and_counted() -> None:
    rows = runs(*({"size": size} for size in (1, 2, 4, 8)))
    figures = drawn(rows.assign(crowded=rows["training_time"] > 4))
    assert figures["score-by-size"].panels[0].values["size"].tolist() == [1, 2, 4, 8]
    assert figures["time-by-size"].panels[0].values["size"].tolist() == [1, 2, 4]
    assert figures["time-by-size"].text.endswith("Without 2 cells that had more cores to use than the machine has.")
    assert "Without" not in figures["score-by-size"].text
