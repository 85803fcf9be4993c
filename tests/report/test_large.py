"""A large study: 1,000 cells in 200 configurations of three numeric axes and two frameworks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select

from benchmarks.report import RATES, write_dataset
from hpcrl.formats.tables import load_table, read_index
from hpcrl.report.axes import axes, numeric
from hpcrl.report.figures import figures
from hpcrl.report.page import ROWS
from hpcrl.report.sections import Section, make_section
from hpcrl.report.write import read_cells, write_report
from hpcrl.spec.library import Library
from tests.report.browser import found, opened, until

pytestmark = pytest.mark.slow
with_browser = pytest.mark.skipif(not found(), reason="no chromium and chromedriver here")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("large"), 1_000)


@pytest.fixture(scope="module")
def section(dataset: Path) -> Section:
    tables = {name: load_table(dataset, name) for name in ("episodes", "samples", "phases")}
    return make_section("large", read_cells(dataset, None), tables, read_index(dataset)["studies"]["large"], Library())


@pytest.fixture(scope="module")
def page(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(dataset, None, tmp_path_factory.mktemp("report"), ()).html


def test_the_axes_of_a_study(dataset: Path) -> None:
    found_axes = axes(read_cells(dataset, None))
    assert list(found_axes.columns) == ["framework", "batch_size", "learning_rate", "cores"]
    assert numeric(found_axes) == ["learning_rate", "cores"]  # two batch sizes are no curve
    assert found_axes["learning_rate"].nunique() == len(RATES)


def test_score_and_time_against_each_numeric_axis(section: Section) -> None:
    drawn = {figure.name: figure for figure in section.figures.own}
    assert {"score-by-learning_rate", "time-by-learning_rate", "score-by-cores", "time-by-cores"} <= set(drawn)
    values = drawn["score-by-learning_rate"].panels[0].values
    best = values.loc[values["final score, median"].astype(float).idxmax()]
    assert best["learning_rate"] == pytest.approx(1.6e-3)
    assert set(values["runs"]) == {50} or values["runs"].min() >= 48  # the failed ones have no score
    times = drawn["time-by-cores"].panels[0].values
    jax = times[times["runs of"].str.startswith("JAX")].sort_values("cores")
    assert jax["training time (s), median"].is_monotonic_decreasing


def test_a_heat_map_of_two_axes(section: Section) -> None:
    (score,) = [figure for figure in section.figures.own if figure.name == "score-map"]
    assert [panel.title for panel in score.panels] == ["PyTorch", "JAX"]
    assert len(score.panels[0].values) == len(RATES) * 5


def test_what_is_drawn_line_by_line_is_chosen_by_a_rule_in_the_caption(section: Section) -> None:
    (wall,) = [figure for figure in section.figures.own if figure.name == "wall-time"]
    assert len(wall.panels[0].values) == 20
    assert "20 of 200 configurations are drawn: the 8 with the best median scores" in wall.text


def test_the_table_knows_the_axes_of_its_rows(section: Section) -> None:
    table = section.table
    assert len(table.rows) == 200
    for row, framework, rate in zip(table.rows, table.axes["framework"], table.axes["learning_rate"], strict=True):
        name = row[table.columns.index("configuration")]
        assert name.startswith({"torch": "PyTorch", "jax": "JAX"}[framework])
        assert name.endswith(f"learning_rate {rate}")


def shown(browser: Any) -> list[str]:
    script = "return [...document.querySelector('.comparison table').tBodies[0].rows].map(row => row.innerText.trim().replace(/\\s+/g, ' '))"
    return browser.execute_script(script)  # type: ignore[no-any-return]


def status(browser: Any) -> str:
    return str(browser.find_element(By.CSS_SELECTOR, ".pager [role=status]").text)


@with_browser
def test_the_table_is_searched_filtered_grouped_and_shown_in_pages(page: Path) -> None:
    with opened(page) as browser:
        assert (len(shown(browser)), status(browser)) == (ROWS, "1 to 100 of 200 configurations")
        assert "batch_size 8 " in shown(browser)[0]
        before, after = browser.find_elements(By.CSS_SELECTOR, ".pager button")
        assert not before.is_enabled()
        first = shown(browser)[0]
        after.click()
        assert status(browser) == "101 to 200 of 200 configurations"
        assert first not in shown(browser)
        assert not after.is_enabled()
        tools = browser.find_element(By.CSS_SELECTOR, "form.tools")
        Select(tools.find_element(By.CSS_SELECTOR, "select[name=cores]")).select_by_visible_text("16")
        until(lambda: status(browser) == "1 to 40 of 40 configurations", "filtered")
        assert all(" 16 cores " in row for row in shown(browser))
        tools.find_element(By.NAME, "search").send_keys("pytorch 0.0016")
        until(lambda: status(browser) == "1 to 2 of 2 configurations", "searched")
        assert all("PyTorch" in row and "0.0016" in row for row in shown(browser))
        tools.find_element(By.NAME, "search").clear()
        tools.find_element(By.NAME, "search").send_keys(" ")
        Select(tools.find_element(By.CSS_SELECTOR, "select.group")).select_by_value("learning_rate")
        until(lambda: any(row.startswith("learning rate ") for row in shown(browser)), "grouped")
        heads = [row for row in shown(browser) if row.startswith("learning rate ")]
        assert heads[0] == "learning rate 0.0001 (4)"
        assert [float(head.split()[2]) for head in heads] == sorted(RATES)
        values = [each.text for each in Select(tools.find_element(By.NAME, "cores")).options]
        assert values == ["all", "1", "2", "4", "8", "16"]


@with_browser
def test_a_column_is_sorted_over_all_pages(page: Path) -> None:
    with opened(page) as browser:
        heads = [each.text for each in browser.find_elements(By.CSS_SELECTOR, ".comparison th")]
        place = heads.index("resources")
        browser.find_elements(By.CSS_SELECTOR, ".comparison th button")[place].click()
        browser.find_elements(By.CSS_SELECTOR, ".pager button")[1].click()
        cells = browser.execute_script(
            "return [...document.querySelector('.comparison table').tBodies[0].rows].map(row => row.cells[arguments[0]].textContent)",
            place,
        )
        assert list(dict.fromkeys(cells)) == ["4 cores", "8 cores", "16 cores"]


def test_a_study_whose_axis_is_no_number_has_no_curve_of_it(dataset: Path) -> None:
    rows = read_cells(dataset, None)
    few = rows[rows["config"].str.contains('"batch_size": 8,') & (rows["cpus"] == 1)]
    few = few[few["final_score"].notna()].groupby("framework").head(1)
    tables = {
        name: pd.DataFrame(columns=load_table(dataset, name).columns) for name in ("episodes", "samples", "phases")
    }
    assert not [
        each.name for each in figures(few, **tables, study={}).own if each.name.startswith(("score-by", "time-by"))
    ]
