"""What figures show, and when there are any."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import hpcrl
from hpcrl.collect.merge import collect
from hpcrl.report.break_even import break_evens, costs
from hpcrl.report.choice import chosen
from hpcrl.report.curves import band_in_words, equal_lines
from hpcrl.report.design import FRAMEWORKS
from hpcrl.report.figures import figures, statistics
from hpcrl.report.figures.drawing import MOST_VALUES, Figure, as_table, for_paper, for_screen, scale_of, y_lines
from hpcrl.report.figures.marks import bands
from hpcrl.report.figures.statistics import _profiles
from hpcrl.report.groups import with_groups
from hpcrl.report.score import Score
from tests.builders import cells_of, dqn_study, planned, write_record
from tests.collect.gathering import no_slurm


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("figures")
    study = dqn_study(axes={"framework": ["numpy", "torch"], "execution": ["eager", "lazy"]}, seeds=2,
                      exclude=[{"framework": "numpy", "execution": "lazy"}])  # fmt: skip
    plans = [planned(directory / name, study, name) for name in ("workstation", "cirrus")]
    for plan in plans:
        for cell in cells_of(plan):
            lazy = cell["config"]["execution"] == "lazy"
            write_record(
                plan, cell, steps=2000, training_time=6.0 if lazy else 10.0, wall_time=18.0 if lazy else 11.0,
                compile_time=11.0 if lazy else 0.5, goal_step=20, goal_time=2.0,
            )  # fmt: skip
    collect(plans, directory / "d", no_slurm())
    return directory / "d"


@pytest.fixture
def rows(dataset: Path) -> pd.DataFrame:
    return with_groups(hpcrl.load(dataset))


@pytest.fixture(scope="module")
def every(dataset: Path) -> dict[str, Figure]:
    """The figures of the dataset as it is."""
    return drawn(dataset, with_groups(hpcrl.load(dataset)))


def drawn(dataset: Path, rows: pd.DataFrame, study: dict[str, object] | None = None) -> dict[str, Figure]:
    tables = {each: hpcrl.load(dataset, each) for each in ("episodes", "samples", "phases")}
    return {each.name: each for each in figures(rows, **tables, study=study or {}).every}


def values(figure: Figure | None) -> list[float]:
    """Return what a figure's dots stand for."""
    if figure is None:
        return []
    return [float(value) for panel in figure.panels for value in panel.values.iloc[:, 1]]


def scales(chart: Any) -> list[dict[str, Any]]:
    return [
        layer["encoding"]["x"].get("scale", {})
        for layer in chart.to_dict()["layer"]
        if "field" in layer["encoding"].get("x", {})
    ]


def test_speed_in_terms_of_the_machine_needs_two_calibrated_clusters(
    dataset: Path, rows: pd.DataFrame, every: dict[str, Figure]
) -> None:
    assert "normalised-speed" not in every
    speeds = rows["cluster"].map({"workstation": 10_000.0, "cirrus": 40_000.0})
    table = drawn(dataset, rows.assign(calibration_environment=speeds))["normalised-speed"].panels[0].values
    assert {name: round(value, 6) for name, value in table.iloc[:, :2].itertuples(index=False)} == {
        "NumPy eager · cirrus": 0.005, "NumPy eager · workstation": 0.02,
        "PyTorch eager · cirrus": 0.005, "PyTorch eager · workstation": 0.02,
        "PyTorch lazy · cirrus": round(2000 / 6 / 40_000, 6), "PyTorch lazy · workstation": round(2000 / 6 / 10_000, 6),
    }  # fmt: skip
    one = rows.assign(calibration_environment=speeds.where(rows["cluster"] == "cirrus"))
    assert "normalised-speed" not in drawn(dataset, one)


def test_throughput_is_that_of_each_kind_of_machine(dataset: Path, rows: pd.DataFrame) -> None:
    one = rows[(rows["cluster"] == "cirrus") & (rows["framework"] == "numpy")]
    two = one.assign(cpus=2, where="2 cores", training_time=one["training_time"] / 2)
    here = pd.concat([one, two])
    there = here.assign(
        machine="D, 2 threads", where=here["where"] + " (D)", training_time=4 * here["training_time"], plan="other"
    )
    table = drawn(dataset, pd.concat([here, there], ignore_index=True))["scaling"].panels[0].values
    assert [tuple(row) for row in table[["what", "resources", "rate", "seeds"]].itertuples(index=False)] == [
        ("NumPy eager (C)", 1, 200, 2), ("NumPy eager (C)", 2, 400, 2),
        ("NumPy eager (D)", 1, 50, 2), ("NumPy eager (D)", 2, 100, 2),
    ]  # fmt: skip
    assert "scaling" not in drawn(dataset, here.assign(crowded=here["cpus"] == 2))


def test_energy_is_drawn_where_a_counter_was_read(dataset: Path, rows: pd.DataFrame, every: dict[str, Figure]) -> None:
    assert "energy" not in every
    read = rows.assign(energy=4000.0)
    # Joules of a run, and of 1,000 of its 2,000 steps.
    assert {round(each) for each in values(drawn(dataset, read)["energy"])} == {4000, 2000}
    # A command need not report steps.
    assert {round(each) for each in values(drawn(dataset, read.assign(steps=np.nan))["energy"])} == {4000}
    # A cell that failed early is not a frugal one.
    failed = rows.assign(
        energy=np.where(rows["seed"] == 1, 4.0, 4000.0), outcome=np.where(rows["seed"] == 1, "failed", "completed")
    )
    assert {round(each) for each in values(drawn(dataset, failed)["energy"])} == {4000, 2000}


def test_the_axis_of_scores_holds_negative_returns(dataset: Path, rows: pd.DataFrame) -> None:
    for scores, domain in (({1: -200.0, 2: -100.0}, [-210, 0]), ({1: 50.0, 2: 100.0}, [0, 105])):
        chart = drawn(dataset, rows.assign(final_score=rows["seed"].map(scores)))["final-score"].panels[0].chart
        assert domain in [scale.get("domain") for scale in scales(chart)]


def test_an_axis_is_logarithmic_where_values_are_far_apart(dataset: Path, rows: pd.DataFrame) -> None:
    near = rows.assign(wall_time=np.linspace(10, 150, len(rows)))
    far = rows.assign(wall_time=np.linspace(6, 900, len(rows)))
    for table, kind in ((near, None), (far, "log")):
        panel = drawn(dataset, table)["wall-time"].panels[0]
        assert {scale.get("type") for scale in scales(panel.chart)} == {kind}
        # Bars on such an axis would not be honest: there are none.
        assert all(layer["mark"]["type"] != "bar" for layer in panel.chart.to_dict()["layer"])
    assert scale_of(pd.Series([0.0, 1000.0]))[1] is False


def test_the_marks_are_named_and_say_what_the_table_says(
    dataset: Path, rows: pd.DataFrame, every: dict[str, Figure]
) -> None:
    assert "geometric mean over seeds, the bar its 95 % interval (t on logarithms)" in every["wall-time"].text
    assert "median over seeds, the bar an interval of order statistics" in every["final-score"].text
    assert "order statistics" in every["return-by-step"].text
    own = rows[(rows["what"] == "PyTorch lazy") & (rows["cluster"] == "cirrus")].index
    table = drawn(dataset, rows.assign(wall_time=rows["wall_time"].where(rows.index != own[0], 4.5)))["wall-time"]
    shown = dict(table.panels[0].values.iloc[:, :2].itertuples(index=False))
    assert shown["PyTorch lazy · cirrus"] == pytest.approx(9)  # the root of 4.5 x 18, not their mean


def test_learning_curves_have_both_axes_and_start_with_the_record(every: dict[str, Figure]) -> None:
    assert {"return-by-step", "return-by-time", "return-by-episode"} <= set(every)
    curve = every["return-by-time"].panels[0].values
    lazy = curve[curve["configuration"] == "PyTorch lazy"]
    assert lazy["time since the record's start (s)"].min() == 1  # as the record has it
    steps = every["return-by-step"].panels[0].values
    assert (steps["environment steps"].min(), steps["environment steps"].max()) == (10, 20)


def test_evaluations_have_figures_of_their_own(dataset: Path, rows: pd.DataFrame, every: dict[str, Figure]) -> None:
    assert not [name for name in every if name.startswith("evaluation")]
    episodes = hpcrl.load(dataset, "episodes").assign(kind="evaluation")
    tables = {each: hpcrl.load(dataset, each) for each in ("samples", "phases")}
    found = [each.name for each in figures(rows, episodes, **tables, study={}).own]
    assert {"evaluation-by-step", "evaluation-by-time"} <= set(found)
    assert "return-by-step" not in found


def test_what_a_shared_machine_did_is_no_cell_s_own(
    dataset: Path, rows: pd.DataFrame, every: dict[str, Figure]
) -> None:
    alone, beside = every["utilisation"], drawn(dataset, rows.assign(shared=True))["utilisation"]
    assert "CPU of the whole machine (%)" in [panel.title for panel in alone.panels]
    assert not [panel.title for panel in beside.panels if "machine" in panel.title]
    assert "the values of the whole machine do not belong to one cell" in beside.text
    assert "do not belong to one cell" not in alone.text


def test_phases_in_seconds_and_as_shares(dataset: Path, rows: pd.DataFrame) -> None:
    keys = ["plan", "cell", "attempt"]
    phases = pd.concat(
        [rows[keys].assign(rank=0, phase=name, seconds=value) for name, value in (("act", 1.0), ("update", 3.0))]
    )
    tables = {each: hpcrl.load(dataset, each) for each in ("episodes", "samples")}
    found = {each.name: each for each in figures(rows, **tables, phases=phases, study={}).own}
    assert set(found["phases"].panels[0].values["update"]) == {3.0}
    assert set(found["phase-share"].panels[0].values["update"]) == {75.0}


def test_break_even_points_cross_where_the_sentence_says(dataset: Path, rows: pd.DataFrame) -> None:
    one = rows[rows["cluster"] == "cirrus"]
    (found,) = break_evens(costs(one))
    # Lazy takes 11 s more outside of training, and 2 ms less for each step.
    assert found.steps == pytest.approx(5500)
    assert found.late.after(found.steps) == pytest.approx(found.early.after(found.steps))
    figure = drawn(dataset, one)["break-even"]
    crossing = figure.panels[0].values.iloc[0]
    assert (crossing["what"], round(crossing["steps"])) == ("PyTorch lazy takes less time than PyTorch eager", 5500)
    assert "about 5,500 steps (95 % interval 5,410 to 5,590)" in str(found)
    # A step that takes 3 % less time is no reason to extrapolate.
    near = [replace(found.early, per_step=(1.0, 1.0)), replace(found.late, per_step=(0.97, 0.97))]
    assert break_evens(near) == []
    # More environments are other work, and no mode.
    assert break_evens([found.early, replace(found.late, work=(("environments", 64),))]) == []


def test_every_figure_has_its_values_as_a_table_of_bounded_size(rows: pd.DataFrame, every: dict[str, Figure]) -> None:
    for figure in every.values():
        table = as_table(figure)
        assert table["heads"], figure.name
        assert 0 < len(table["rows"]) <= MOST_VALUES, figure.name
        assert all(len(row) == len(table["heads"]) for row in table["rows"])
    long = every["wall-time"]
    many = pd.concat([long.panels[0].values] * 100)
    cut = as_table(Figure("x", "X", "", (type(long.panels[0])(long.panels[0].chart, many),)))
    assert (len(cut["rows"]), cut["more"]) == (MOST_VALUES, len(many) - MOST_VALUES)


def test_figures_follow_the_page_and_keep_a_width_on_paper(every: dict[str, Figure]) -> None:
    for figure in every.values():
        for panel in figure.panels:
            assert for_screen(panel)["width"] == "container", figure.name
        assert "container" not in str(for_paper(figure)), figure.name


def test_colours_are_the_same_in_every_figure(dataset: Path, rows: pd.DataFrame) -> None:
    for table in (rows, rows[rows["framework"] == "torch"]):
        for figure in drawn(dataset, table).values():
            hues = {key.name: key.colour for key in figure.legend}
            assert hues.get("PyTorch", FRAMEWORKS["torch"][1]) == FRAMEWORKS["torch"][1]
            for panel in figure.panels:
                for hue, name in zip(*_scale(panel.chart.to_dict()), strict=True):
                    assert {"PyTorch": "#D55E00", "NumPy": "#8C564B"}.get(name, hue) == hue, figure.name


def _scale(spec: dict[str, Any]) -> tuple[list[str], list[str]]:
    hues: list[str] = []
    names: list[str] = []
    for part in [spec, *spec.get("layer", [])]:
        scale = part.get("encoding", {}).get("color", {}).get("scale", {})
        if "PyTorch" in scale.get("domain", []):
            hues += scale["range"]
            names += scale["domain"]
    return hues, names


def test_of_many_configurations_those_that_matter_are_drawn_and_the_rule_is_said() -> None:
    count = 100
    rows = pd.DataFrame(
        {"study": "s", "cluster": "c", "what": [f"lr {number}" for number in range(count)], "where": "1 core", "outcome": "completed",
         "final_score": [float(number % 37) for number in range(count)], "training_time": [float(1 + (7 * number) % count) for number in range(count)]}
    )  # fmt: skip
    some, rule = chosen(rows)
    assert some["line"].nunique() == 20
    assert some["final_score"].nlargest(2).tolist() == [36, 36]
    assert {1.0, 100.0} <= set(some["training_time"])  # the fastest and the slowest
    assert rule.startswith(
        "20 of 100 configurations are drawn: the 8 with the best median scores, the 8 others that train fastest"
    )
    fewer, nothing = chosen(rows.head(20))
    assert (len(fewer), nothing) == (20, "")
    _, without_scores = chosen(rows.assign(final_score=np.nan), trains=False)
    assert ": the 10 that run fastest, the 10 that run slowest." in without_scores
    low, _ = chosen(rows, more_is_better=False)
    assert low["final_score"].nsmallest(3).tolist() == [0, 0, 0]


def test_configurations_with_one_seed_are_in_no_figure_over_seeds_and_are_counted(rows: pd.DataFrame) -> None:
    some, _ = chosen(rows)
    assert not [each for each in statistics.figures(some, None, Score()) if "Left out" in each.text]
    drawn = statistics.figures(some.iloc[1:], None, Score())
    assert len(drawn) == 3
    assert all(each.text.endswith(" Left out: 1 configuration with one completed seed.") for each in drawn)


def test_panels_of_a_figure_on_paper_share_their_colours_and_dashes() -> None:
    """Vega-Lite would keep the first panel's: the second framework would have the first one's colour."""
    ends = {
        "where": "1 core",
        "cluster": "c",
        "what": "w",
        "line": "w",
        "study": "s",
        "seeds": 3,
        "level": 0.9,
        "low": 0.0,
        "high": 1.0,
    }
    panels = []
    for framework, hue, mode in (("JAX", "#009E73", "lazy"), ("PyTorch", "#D55E00", "eager")):
        data = pd.DataFrame(
            [
                ends | {"x": x, "median": x, "colour": framework, "hex": hue, "dash": mode, "apart": ""}
                for x in (1.0, 2.0)
            ]
        )
        panels += bands(data, "time (s)", "return")
    spec = for_paper(Figure("f", "F", "text", tuple(panels), ()))
    for channel, values in (("color", {"JAX": "#009E73", "PyTorch": "#D55E00"}), ("strokeDash", None)):
        scales = [
            layer["encoding"][channel]["scale"]
            for part in spec["concat"]
            for layer in part["layer"]
            if channel in layer.get("encoding", {})
        ]
        assert len(scales) > 1
        assert all(scale == scales[0] for scale in scales)
        assert len(scales[0]["domain"]) == len(scales[0]["range"]) == 2
        if values:
            assert dict(zip(scales[0]["domain"], scales[0]["range"], strict=True)) == values


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        # The first line ends with the value with which the second one begins.
        ({"A": [500.0] * 5, "B": [300.0, 350, 400, 450, 500]}, {"A": [0.0, 1.0], "B": [0.0, 1.0]}),
        ({"A": [0.0, 0.0]}, {"A": [0.0, 1.0]}),
        ({"A": [0.0, 100.0]}, {"A": [0.0, 1.0]}),
    ],
)
def test_every_line_of_a_performance_profile_has_its_beginning(
    scores: dict[str, list[float]], expected: dict[str, list[float]]
) -> None:
    look = {"cluster": "c", "where": "1 core", "colour": "w", "hex": "#000000", "dash": "", "apart": ""}
    rows = pd.DataFrame(
        [look | {"what": what, "final_score": value} for what, each in scores.items() for value in each]
    )
    (panel,) = _profiles(rows, None, Score()).panels
    first = panel.values.groupby("configuration").first()
    assert {str(what): values.tolist() for what, values in first.iterrows()} == expected


def test_lines_that_hide_each_other_are_told() -> None:
    def line(what: str, end: float, where: str = "1 core", apart: str = "") -> dict[str, Any]:
        return {
            "what": what,
            "where": where,
            "apart": apart,
            "cluster": "c",
            "x": [0.0, 1.0],
            "median": [0.0, end],
            "low": 0.0,
            "high": 9.0,
        }

    def told(*lines: dict[str, Any]) -> str:
        return equal_lines(pd.concat([pd.DataFrame(each) for each in lines]))

    assert told(line("A", 1), line("B", 2), line("C", 1), line("D", 1)).endswith("are equal: A, C and D.")
    assert told(line("A", 1), line("B", 2), line("C", 1), line("D", 2)).endswith("are equal: A and C; B and D.")
    assert told(line("A", 1), line("B", 1.001), line("C", 1, where="2 cores"), line("D", 1, apart="PPO")) == ""


def test_the_level_of_bands_is_that_of_lines_that_have_one() -> None:
    text = band_in_words(pd.DataFrame({"seeds": [1, 5], "level": [0.0, 0.9375]}))
    assert "in 93 % of cases or more" in text and text.endswith("Lines of one seed have no band.")
    assert "no band" not in band_in_words(pd.DataFrame({"seeds": [5, 5], "level": [0.9375, 0.9375]}))
    assert band_in_words(pd.DataFrame({"seeds": [1], "level": [0.0]})) == "Lines are single seeds."


def curves_of(tmp_path: Path, axes: dict[str, Any], **changes: Any) -> Figure:
    content = dqn_study(axes=axes, seeds=2)
    content["workload"] |= changes
    plan = planned(tmp_path / "p", content)
    for cell in cells_of(plan):
        write_record(plan, cell)
    collect([plan], tmp_path / "d", no_slurm())
    tables = {name: hpcrl.load(tmp_path / "d", name) for name in ("episodes", "samples", "phases")}
    rows, _ = chosen(with_groups(hpcrl.load(tmp_path / "d")).assign(shared=False))
    return next(each for each in figures(rows, **tables, study={}).own if each.name == "return-by-step")


def test_long_names_have_two_lines_of_text() -> None:
    names = ["TD3 JAX lazy", "TD3 JAX lazy activation relu, shared_noise false, target_noise_kind normal", "x" * 80]
    axis = y_lines(names).to_dict()["axis"]
    assert "TD3 JAX lazy activation relu," in axis["labelExpr"] and "target_noise_kind normal" in axis["labelExpr"]
    assert '["TD3 JAX lazy activation relu, shared_noise", "false, target_noise_kind normal"]' in axis["labelExpr"]
    assert axis["labelOverlap"] is False
    assert "labelExpr" not in y_lines(names[:1]).to_dict()["axis"]


def test_configurations_of_one_framework_have_a_colour_each(tmp_path: Path) -> None:
    figure = curves_of(tmp_path, {"framework": ["numpy"], "gamma": [0.9, 0.99, 0.999]})
    assert [key.name for key in figure.legend if key.colour] == ["gamma 0.9", "gamma 0.99", "gamma 0.999"]
    assert len({key.colour for key in figure.legend if key.colour}) == 3
    assert [panel.title for panel in figure.panels] == [""]


def test_what_colours_and_dashes_do_not_tell_has_a_panel_of_its_own(tmp_path: Path) -> None:
    figure = curves_of(tmp_path, {"framework": ["numpy", "torch"], "gamma": [0.9, 0.99]})
    assert [key.name for key in figure.legend if key.colour] == ["PyTorch", "NumPy"]
    assert [panel.title for panel in figure.panels] == ["gamma 0.9", "gamma 0.99"]
    for panel in figure.panels:
        assert panel.values["configuration"].nunique() == 2
    (tmp_path / "many").mkdir()
    many = curves_of(tmp_path / "many", {"framework": ["numpy", "torch"], "gamma": [n / 10 for n in range(1, 10)]})
    assert [panel.title for panel in many.panels] == [""]  # too many for panels
