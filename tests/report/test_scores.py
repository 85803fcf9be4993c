"""Scores of commands: a reported return, or the value that the study names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hpcrl
from hpcrl.collect.merge import collect
from hpcrl.errors import SpecError
from hpcrl.report.curves import returns
from hpcrl.report.export import _runs
from hpcrl.report.groups import lines, with_groups
from hpcrl.report.write import write_report
from hpcrl.spec.library import Library
from tests.builders import cells_of, command_study, planned, write_yaml
from tests.builders import write_record as write_plain
from tests.collect.gathering import no_slurm, rewritten


def reported(directory: Path, entries: dict[str, list[float]], **changes: Any) -> Path:
    """A dataset of a command with two variants of three seeds, which reported these values; the second variant ten times as much."""
    study = command_study(["program"], axes={"variant": ["a", "b"]}, seeds=3, **changes)
    plan = planned(directory / "plan", study)
    for cell in cells_of(plan):
        factor = (10 if cell["config"]["variant"] == "b" else 1) + 0.01 * cell["config"]["seed"]
        path = write_plain(plan, cell, returns=())
        with rewritten(path, workload="command") as writer:
            for place in range(len(next(iter(entries.values())))):
                values = {name: factor * series[place] for name, series in entries.items()}
                writer.write("values", {"entries": [{"time": place + 1.0, "step": 10 * place, "values": values}]})
            writer.write("footer", {"outcome": "completed", "wall_time": 4.0 + factor})
    collect([plan], directory / "dataset", no_slurm())
    return directory / "dataset"


def test_a_reported_return_is_a_score(tmp_path: Path) -> None:
    given = reported(tmp_path, {"episode_return": [1.0, 9.0, 5.0], "loss": [3.0, 2.0, 1.0]})
    cells = hpcrl.load(given).sort_values("final_score")
    assert cells["final_score"].round(6).tolist() == [5.05, 5.1, 5.15, 50.05, 50.1, 50.15]
    assert cells["best_score"].round(6).tolist()[0] == 9.09
    done = write_report(given, None, tmp_path / "r", ())
    assert "final" in done.columns
    text = done.html.read_text()
    for title in (
        "Final score",
        "Wall time",
        "Interquartile mean",
        "Return against environment steps",
        "Return against steps",
    ):
        assert (title in text) == (title != "Return against environment steps"), title


def test_a_caption_explains_the_columns_that_there_are(tmp_path: Path) -> None:
    """This study has no goal, and a command compiles nothing that hpcrl could see."""
    text = write_report(reported(tmp_path, {"episode_return": [1.0, 9.0]}), None, tmp_path / "r", ()).html.read_text()
    assert "<em>Training</em>" in text
    assert "<em>At goal</em>" not in text and "<em>compile</em>" not in text


def test_what_a_failed_cell_had_reported_is_no_score(tmp_path: Path) -> None:
    given = reported(tmp_path, {"episode_return": [1.0, 9.0, 5.0]})
    plan = tmp_path / "plan"
    last = [cell for cell in cells_of(plan) if cell["config"]["variant"] == "a"][-1]
    (path,) = (plan / "records").glob(f"{last['id']}.*")
    with rewritten(path, workload="command") as writer:
        writer.write("values", {"entries": [{"time": 1.0, "step": 0, "values": {"episode_return": 900.0}}]})
        writer.write("footer", {"outcome": "failed", "wall_time": 2.0})
    collect([plan], given, no_slurm())
    assert hpcrl.load(given)["final_score"].max() == 900
    (a, b) = lines(with_groups(hpcrl.load(given)))
    assert (a.cells, a.completed, b.completed) == (3, 2, 3)
    assert a.final is not None
    assert a.final.value == pytest.approx((5.05 + 5.1) / 2)


def test_a_study_names_its_score_and_which_way_is_better(tmp_path: Path) -> None:
    given = reported(tmp_path, {"loss": [3.0, 1.0, 2.0]}, score="loss", better="lower")
    cells = hpcrl.load(given).sort_values("final_score")
    assert cells["final_score"].round(6).tolist() == [2.02, 2.04, 2.06, 20.02, 20.04, 20.06]
    assert cells["best_score"].round(6).tolist()[0] == 1.01
    text = write_report(given, None, tmp_path / "r", ()).html.read_text()
    assert "Best median loss: 2.04 (variant a, " in text
    assert "lower is better" in text
    for title in ("Loss against steps", "Loss against time", "Interquartile mean", "Fastest: variant a ends in"):
        assert title in text


def test_the_page_has_the_name_of_a_score_as_the_program_gave_it(tmp_path: Path) -> None:
    text = write_report(reported(tmp_path, {"GFLOPs": [3.0, 1.0]}, score="GFLOPs"), None, tmp_path / "r", ()).html
    assert "<em>GFLOPs</em>: The last value" in text.read_text()


def test_of_values_that_every_rank_reports_the_first_rank_s_are_the_score_s(tmp_path: Path) -> None:
    """A command on two ranks, of which the second one reports ten times as much, each at its own time."""
    resources = {"tasks": 2, "memory": "1G", "time": "00:10:00"}
    plan = planned(tmp_path / "p", command_study(["program"], score="speed", resources=resources), "sol")
    for cell in cells_of(plan):
        for rank, factor in ((0, 1.0), (1, 10.0)):
            entries = [{"time": rank + place, "step": place, "values": {"speed": factor * place}} for place in (1, 2)]
            header = {"workload": "command"}
            write_plain(plan, cell, rank=rank, ranks=2, returns=(), header=header, reported=entries)
    collect([plan], tmp_path / "d", no_slurm())
    cells, episodes = hpcrl.load(tmp_path / "d"), hpcrl.load(tmp_path / "d", "episodes")
    assert set(episodes["value"]) == {1.0, 2.0, 10.0, 20.0}
    assert set(cells["final_score"]) == {2.0}
    rows = with_groups(cells)
    curve = returns(rows.assign(line=rows["what"]), episodes, "step", window=1, name="speed")
    assert (curve["median"].min(), curve["median"].max()) == (1.0, 2.0)
    exported = [point.value for _, points in _runs(tmp_path / "d") for point in points]
    assert set(exported) == {1.0, 2.0}


def test_without_either_there_is_no_score(tmp_path: Path) -> None:
    given = reported(tmp_path, {"loss": [3.0, 1.0]})
    assert hpcrl.load(given)["final_score"].isna().all()
    text = write_report(given, None, tmp_path / "r", ()).html.read_text()
    assert "Wall time" in text
    assert "Interquartile mean" not in text


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"better": "lower"}, "`score` is missing"),
        ({"score": "loss", "better": "less"}, "better"),
        (
            {
                "score": "loss",
                "workload": {"algorithm": "dqn", "environment": "CartPole-v1"},
                "axes": {"framework": ["numpy"]},
            },
            "`score` is for commands",
        ),
    ],
)
def test_scores_that_a_study_cannot_have(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    file = write_yaml(tmp_path / "study.yaml", command_study(["program"], **changes))
    with pytest.raises(SpecError, match=text):
        Library().study(str(file))
