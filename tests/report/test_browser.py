from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from hpcrl.collect.merge import collect
from hpcrl.report.write import write_report
from tests.builders import cells_of, dqn_study, planned, write_record
from tests.collect.gathering import no_slurm
from tests.report.browser import found, opened, until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not found(), reason="no chromium and chromedriver here")]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("report")
    axes = {"framework": ["numpy", "torch", "jax"], "execution": ["eager", "lazy"]}
    exclude = [{"framework": "numpy", "execution": "lazy"}]
    study = dqn_study(axes=axes, exclude=exclude, seeds=4, paper="sol-dqn-frameworks")
    plan = planned(directory / "p", study)
    generator = np.random.default_rng(0)
    for number, cell in enumerate(cells_of(plan)):
        returns = tuple(float(each) for each in np.linspace(10, 900, 40) + generator.normal(0, 50, 40))
        outcome = "failed" if number == 3 else "completed"
        training = 10.0 * (1 + number // 4) + generator.normal()
        write_record(
            plan, cell, outcome=outcome, reason="</script><b>it & broke</b>" if number == 3 else None, returns=returns,
            final_score=float(generator.integers(100, 1000)), goal_step=200 + number, goal_time=5.0 + number,
            training_time=training, compile_time=1.0,
        )  # fmt: skip
    collect([plan], directory / "d", no_slurm())
    return write_report(directory / "d", None, directory / "r", formats=()).html


def test_every_figure_is_drawn_and_the_console_is_silent(page: Path) -> None:
    with opened(page) as browser:
        figures = browser.find_elements(By.CSS_SELECTOR, ".figure")
        assert len(figures) > 15 + 5
        for figure in figures:
            browser.execute_script("arguments[0].scrollIntoView()", figure)
            until(lambda figure=figure: figure.find_elements(By.CSS_SELECTOR, "svg.marks, canvas.marks"), "a drawing")
            assert figure.get_attribute("aria-label")
            assert figure.find_elements(By.CSS_SELECTOR, "details a[download], details")
        assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
        assert browser.find_elements(By.TAG_NAME, "b") == []


def column(browser: object, index: int) -> list[str]:
    script = "return [...document.querySelector('table.sortable').tBodies[0].rows].map(r => r.cells[arguments[0]].textContent)"
    return browser.execute_script(script, index)  # type: ignore[attr-defined,no-any-return]


def test_tables_sort_by_mouse_and_keyboard(page: Path) -> None:
    with opened(page) as browser:
        heads = browser.find_elements(By.CSS_SELECTOR, "table.sortable th button")
        index = next(number for number, head in enumerate(heads) if head.text.startswith("training"))
        heads[index].click()
        ascending = [float(text) for text in column(browser, index)]
        assert ascending == sorted(ascending)
        heads[index].send_keys(Keys.ENTER)
        assert [float(text) for text in column(browser, index)] == ascending[::-1]
        assert browser.find_elements(By.CSS_SELECTOR, "th[aria-sort=descending]")


def test_light_and_dark(page: Path) -> None:
    colours = []
    for dark in (False, True):
        with opened(page, dark=dark) as browser:
            body = browser.find_element(By.TAG_NAME, "body")
            colours.append(body.value_of_css_property("background-color"))
            first = browser.find_element(By.CSS_SELECTOR, ".figure")
            until(lambda first=first: first.find_elements(By.CSS_SELECTOR, "svg.marks"), "a drawing")
            label = first.find_element(By.CSS_SELECTOR, "svg.marks text")
            colours.append(str(label.get_attribute("fill")))
    assert colours[0] != colours[2]
    assert colours[1] != colours[3]


def test_a_narrow_window_scrolls_its_tables_not_the_page(page: Path) -> None:
    with opened(page, width=500) as browser:
        wide = browser.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0


def test_what_is_printed_fits_the_paper(page: Path) -> None:
    """A4 is 210 mm wide and has two margins of 14 mm: 688 of CSS's pixels."""
    with opened(page, width=688, dark=True) as browser:
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": 688, "height": 1000, "deviceScaleFactor": 1, "mobile": False,
        })  # fmt: skip
        browser.execute_script("window.dispatchEvent(new Event('beforeprint'))")
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        figures = browser.find_elements(By.CSS_SELECTOR, ".figure")
        drawings = "svg.marks, canvas.marks"
        until(lambda: len(browser.find_elements(By.CSS_SELECTOR, drawings)) == len(figures), "every figure, drawn")
        for each in (
            *browser.find_elements(By.CSS_SELECTOR, drawings),
            *browser.find_elements(By.CSS_SELECTOR, "table"),
        ):
            assert each.rect["x"] + each.rect["width"] <= 689, each.rect
        assert not any(each.is_displayed() for each in browser.find_elements(By.CSS_SELECTOR, ".vega-embed details"))
        label = browser.find_element(By.CSS_SELECTOR, "svg.marks text")
        assert label.get_attribute("fill") == "#1b1f24"  # dark ink, though the screen is dark
