"""Strong and weak scaling: which cells belong together, and what the numbers are."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import hpcrl
from hpcrl.collect.merge import collect
from hpcrl.report.figures.drawing import for_paper, for_screen
from hpcrl.report.figures.scaling import figures
from hpcrl.report.groups import with_groups
from hpcrl.report.scaling import Series, in_words, scaling, sizes
from hpcrl.report.write import write_report
from tests.builders import cells_of, command_study, dqn_study, planned, write_record
from tests.collect.gathering import no_slurm

NOISE = (0.99, 1.0, 1.01)
MACHINE = {"cpu": "C", "threads": 128, "memory": 1024**3, "gpus": [], "kernel": "6"}


def study(values: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    return command_study(["true"], axes={"problem": values}, seeds=3, **changes)


def measured(tmp_path: Path, content: dict[str, Any] | str, cluster: str = "sol") -> Path:
    """Plan and collect a study whose time is 8 s for 100 rows, a tenth of it not parallel."""
    plan = planned(tmp_path / "plan", content, cluster)
    for cell in cells_of(plan):
        asked, config = cell["resources"], cell["config"]
        cores = asked["tasks"] * asked["cpus"]
        seconds = 8 * config.get("rows", 100) / 100 * (0.1 + 0.9 / cores) * NOISE[config["seed"] - 1]
        write_record(plan, cell, returns=(), training_time=seconds, wall_time=seconds + 1, steps=None, episodes=None,
                     final_score=None, header={"hardware": MACHINE})  # fmt: skip
    collect([plan], tmp_path / "dataset", no_slurm())
    return tmp_path / "dataset"


def found(dataset: Path, *size: str) -> dict[str, Series]:
    return {f"{each.kind} {each.label}".strip(): each for each in scaling(with_groups(hpcrl.load(dataset)), size)}


STRONG = [{"tasks": tasks, "rows": 100} for tasks in (1, 2, 4)]
WEAK = [{"tasks": tasks, "rows": 100 * tasks} for tasks in (2, 4)]


def test_strong_and_weak_scaling_of_one_study(tmp_path: Path) -> None:
    series = found(measured(tmp_path, study([*STRONG, *WEAK], scaling={"size": "rows"})), "rows")
    assert list(series) == ["strong rows 100", "weak rows 100 for each core"]
    strong, weak = series.values()
    assert [point.count for point in strong.points] == [point.count for point in weak.points] == [1, 2, 4]
    assert [point.speed_up.value for point in strong.points] == pytest.approx([1, 1 / 0.55, 1 / 0.325])
    assert [point.efficiency.value for point in strong.points] == pytest.approx([1, 0.5 / 0.55, 0.25 / 0.325])
    # Weak: as many times the work in 0.1 + 0.9 / n of as many times the time.
    assert [point.efficiency.value for point in weak.points] == pytest.approx([1, 1 / 1.1, 1 / 1.3])
    assert [point.speed_up.value for point in weak.points] == pytest.approx([1, 2 / 1.1, 4 / 1.3])
    for point in (*strong.points[1:], *weak.points[1:]):
        assert point.runs == 3
        for each in (point.speed_up, point.efficiency, point.cost):
            assert each.low is not None and each.high is not None
            assert each.low < each.value < each.high < 1.1 * each.value
    assert strong.points[0].speed_up.low is None  # a value beside itself


@pytest.mark.parametrize(("cluster", "unit", "rate"), [("sol", "CHE", 1.25), ("cirrus", "core-h", 1.0)])
def test_cost_is_in_the_unit_of_the_site(tmp_path: Path, cluster: str, unit: str, rate: float) -> None:
    dataset = measured(tmp_path, study(STRONG), cluster)
    (series,) = found(dataset).values()
    assert series.cost_unit == unit
    cells = hpcrl.load(dataset)
    assert (cells["charged_cores"] == cells["tasks"]).all()
    for point, seconds in zip(series.points, (8, 4.4, 2.6), strict=True):
        own = cells[cells["tasks"] == point.count]["charge_rate"].iloc[0]
        assert point.cost.value == pytest.approx((seconds + 1) * own / 3600, rel=1e-3)  # of the whole run
    four = cells[cells["tasks"] == 4]["charge_rate"].iloc[0]
    assert four == pytest.approx(rate * 4, rel=0.01)


def test_cost_is_in_core_hours_where_the_site_has_no_unit(tmp_path: Path) -> None:
    (series,) = found(measured(tmp_path, study(STRONG[:2]), "workstation")).values()
    assert series.cost_unit == "core-hours"
    assert series.points[1].cost.value == pytest.approx(2 * 5.4 / 3600, rel=1e-3)


def test_a_dataset_of_before_counts_the_cores_that_were_asked_for(tmp_path: Path) -> None:
    rows = with_groups(hpcrl.load(measured(tmp_path, study(STRONG))))
    old = rows.assign(charged_cores=float("nan"), charge_rate=float("nan"), charge_unit=None)
    (series,) = scaling(old)
    assert series.cost_unit == "core-hours"
    assert series.points[2].cost.value == pytest.approx(4 * 3.6 / 3600, rel=1e-3)


def test_a_run_costs_what_the_site_charges_for_all_of_it(tmp_path: Path) -> None:
    """Set-up and compiling take as long on any number of cores."""
    rows = with_groups(hpcrl.load(measured(tmp_path, study(STRONG[:2])))).assign(
        charge_unit=None, charged_cores=float("nan")
    )
    rows = rows.assign(training_time=rows["tasks"].map({1: 100.0, 2: 15.0}))
    (series,) = scaling(rows.assign(wall_time=rows["training_time"] + 30))
    assert [point.cost.value for point in series.points] == pytest.approx([130 / 3600, 2 * 45 / 3600])
    assert in_words([series])[0].endswith("a run costs 0.025 core-hours, 0.692 times as much.")
    resumed = rows.assign(
        wall_time=(rows["training_time"] + 30).mask(rows["seed"] == 1)
    )  # with_groups masks such a time
    (series,) = scaling(resumed)
    assert [point.cost.value for point in series.points] == pytest.approx([100 / 3600, 2 * 15 / 3600])
    assert in_words([series])[0].endswith("a run costs at least 0.008 core-hours, 0.300 times as much.")
    cost = figures([series], trains=True)[2]
    assert "for configurations with requeued cells those of training alone" in cost.text


def test_series_without_a_sentence_are_counted(tmp_path: Path) -> None:
    (series,) = scaling(with_groups(hpcrl.load(measured(tmp_path, study(STRONG[:2])))))
    said = in_words([series] * 35, most=20)
    assert (len(said), said[-1]) == (21, "15 more are in scaling.csv.")
    assert len(in_words([series] * 20, most=20)) == 20


def test_what_differs_in_more_than_cores_is_apart(tmp_path: Path) -> None:
    values = [{"tasks": tasks, "solver": solver} for tasks in (1, 2) for solver in ("cg", "lu")]
    assert list(found(measured(tmp_path, study(values)))) == ["strong solver cg", "strong solver lu"]


def test_a_number_of_cores_that_is_made_in_two_ways_is_two_series(tmp_path: Path) -> None:
    values = [{"tasks": tasks, "cpus": cpus} for tasks in (1, 2, 4) for cpus in (1, 11)]
    series = found(measured(tmp_path, study(values)))
    # 1 x 1, 2 x 1, 1 x 11, 4 x 1, 2 x 11, 4 x 11: every product is another one.
    assert [point.count for point in series["strong"].points] == [1, 2, 4, 11, 22, 44]
    values = [{"tasks": tasks, "cpus": cpus} for tasks in (1, 2, 4) for cpus in (1, 2)]
    (tmp_path / "b").mkdir()
    series = found(measured(tmp_path / "b", study(values)))
    assert {name: [point.count for point in each.points] for name, each in series.items()} == {
        "strong 1 core for each rank": [1, 2, 4],
        "strong 2 cores for each rank": [2, 4, 8],
    }
    assert series["strong 2 cores for each rank"].points[0].speed_up.value == 1


def test_ranks_that_average_are_compared_with_one_that_works_alone(tmp_path: Path) -> None:
    values = [{"tasks": 1}, *({"tasks": 2, "parallelism": way} for way in ("horovod", "native"))]
    content = dqn_study(axes={"framework": ["torch"], "ranks": values}, seeds=2)
    content["workload"]["hyperparameters"] |= {"batch_size": 64}
    plan = planned(tmp_path / "plan", content, "sol")
    for cell in cells_of(plan):
        write_record(plan, cell, training_time=10.0 / cell["resources"]["tasks"])
    collect([plan], tmp_path / "dataset", no_slurm())
    series = found(tmp_path / "dataset")
    assert list(series) == ["strong Horovod", "strong native"]
    assert [point.speed_up.value for point in series["strong Horovod"].points] == pytest.approx([1, 2])
    assert len({(each.hex, each.dash) for each in series.values()}) == 2  # told apart in a figure


def test_kinds_of_machines_scale_each_for_itself(tmp_path: Path) -> None:
    rows = with_groups(hpcrl.load(measured(tmp_path, study(STRONG))))
    elsewhere = rows.assign(machine=rows["machine"].mask(rows["tasks"] > 1, "D, 128 threads"))
    # What is left is 2 and 4 ranks on D: the step from 1 to 2 would be that of the CPU.
    (series,) = scaling(elsewhere)
    assert (series.label, [point.count for point in series.points]) == ("(D)", [2, 4])
    other = rows.assign(machine="D, 128 threads", training_time=2 * rows["training_time"])
    both = scaling(pd.concat([rows, other], ignore_index=True))
    assert [(each.label, [point.runs for point in each.points]) for each in both] == [
        ("(C)", [3] * 3),
        ("(D)", [3] * 3),
    ]
    for each in both:
        assert [point.speed_up.value for point in each.points] == pytest.approx([1, 1 / 0.55, 1 / 0.325])


def test_cells_that_failed_or_have_one_number_of_cores_scale_nothing(tmp_path: Path) -> None:
    dataset = measured(tmp_path, study([{"tasks": 2, "rows": rows} for rows in (100, 200)]))
    assert found(dataset, "rows") == {}
    rows = with_groups(hpcrl.load(measured(_made(tmp_path / "b"), study(STRONG))))
    assert scaling(rows.assign(outcome=rows["outcome"].where(rows["tasks"] == 1, "failed"))) == []
    assert scaling(rows.assign(outcome="failed")) == []


def test_a_size_that_does_not_divide_evenly_is_the_same_for_each_core(tmp_path: Path) -> None:
    values = [{"tasks": 1, "rows": 100}, {"tasks": 2, "rows": 201}, {"tasks": 4, "rows": 396}]
    series = found(measured(tmp_path, study(values)), "rows")
    assert [[point.count for point in each.points] for each in series.values()] == [[1, 2, 4]]


@pytest.mark.parametrize(
    "index", [{}, {"scaling": None}, {"scaling": "rows"}, {"scaling": {"size": "rows"}}, {"scaling": 1}]
)
def test_an_index_of_another_form_names_no_size(index: dict[str, object]) -> None:
    assert sizes(index) == ()


def test_the_report_of_a_study_that_scales(tmp_path: Path) -> None:
    dataset = measured(tmp_path, study([*STRONG, *WEAK], scaling={"size": ["rows"]}))
    page = write_report(dataset, None, tmp_path / "report", ()).html.read_text()
    assert ">Scaling</h3>" in page
    assert "4 cores are 3.08 (95 % interval" in page
    with (tmp_path / "report/scaling.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["scaling"], row["count"], row["runs"]) for row in rows] == [
        (kind, str(count), "3") for kind in ("strong", "weak") for count in (1, 2, 4)
    ]
    assert float(rows[2]["speed_up"]) == pytest.approx(1 / 0.325)


def test_the_figures_have_their_ideal_and_their_tables(tmp_path: Path) -> None:
    dataset = measured(tmp_path, study([*STRONG, *WEAK], scaling={"size": "rows"}))
    series = scaling(with_groups(hpcrl.load(dataset)), ("rows",))
    drawn = {each.name: each for each in figures(series, trains=False)}
    assert list(drawn) == [
        f"{kind}-scaling-{each}" for kind in ("strong", "weak") for each in ("speed-up", "efficiency", "cost")
    ]
    speed_up = drawn["strong-scaling-speed-up"]
    assert [key.name for key in speed_up.legend] == ["ideal"]
    assert "the command alone" in speed_up.text and "train" not in speed_up.text
    (panel,) = speed_up.panels
    assert list(panel.values["cores"]) == [1, 2, 4]
    assert panel.values["speed-up"].tolist() == pytest.approx([1, 1 / 0.55, 1 / 0.325])
    spec = str(for_screen(panel))
    assert "'base': 2" in spec and "'count': 4, 'value': 4.0" in spec
    assert for_paper(speed_up)["layer"]
    assert [key.name for key in drawn["weak-scaling-cost"].legend] == []


def test_an_interval_that_is_cut_has_an_arrowhead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.report.test_scaling.NOISE", (0.5, 1.0, 1.7))
    series = scaling(with_groups(hpcrl.load(measured(tmp_path, study(STRONG)))))
    drawn = figures(series, trains=False)[0]
    assert "An arrowhead marks an interval that continues beyond the drawn bar" in drawn.text
    spec = str(for_screen(drawn.panels[0]))
    assert "triangle-up" in spec and "triangle-down" in spec
    assert drawn.panels[0].values["to"].max() > 10  # the table has the whole interval


def test_one_run_has_no_interval_and_says_so(tmp_path: Path) -> None:
    dataset = measured(tmp_path, study(STRONG) | {"seeds": 1})
    series = scaling(with_groups(hpcrl.load(dataset)))
    assert [point.speed_up.low for point in series[0].points] == [None] * 3
    assert "95 %" not in " ".join(in_words(series))
    assert "With one run there is no interval." in figures(series, trains=False)[0].text
    assert pd.isna(figures(series, trains=False)[0].panels[0].values["from"]).all()


def _made(path: Path) -> Path:
    path.mkdir()
    return path


def test_runs_with_more_cores_than_their_machine_scale_nothing(tmp_path: Path) -> None:
    rows = with_groups(hpcrl.load(measured(tmp_path, study(STRONG))))
    assert not rows["crowded"].any()
    (series,) = scaling(rows.assign(crowded=rows["tasks"] > 2))
    assert [point.count for point in series.points] == [1, 2]
    assert scaling(rows.assign(crowded=rows["tasks"] > 1)) == []


def test_a_series_is_named_as_in_the_comparison_and_without_settings_that_its_algorithm_settles(tmp_path: Path) -> None:
    axes = {
        "algorithm": [
            {"algorithm": "dqn", "batch_size": 64, "total_steps": 2000},
            {"algorithm": "ppo", "minibatch_size": 32, "total_steps": 2048},
        ],
        "cpus": [1, 2],
    }
    content = dqn_study(axes={"framework": ["torch"], **axes}, seeds=2)
    content["workload"] = {"environment": "CartPole-v1"}
    series = found(measured(tmp_path, content))
    assert list(series) == ["strong DQN", "strong PPO"]
