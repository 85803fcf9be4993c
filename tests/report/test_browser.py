from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from hpcrl import api
from hpcrl.collect.merge import collect
from hpcrl.report.write import write_report
from tests.builders import cells_by_key, cells_of, dqn_study, planned, write_record
from tests.collect.gathering import no_slurm
from tests.report.browser import found, opened, until, violations
from tests.report.test_profiles import PROFILE
from tests.report.test_videos import leave_agent

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not found(), reason="no chromium and chromedriver here")]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("report")
    axes = {"framework": ["numpy", "torch", "jax"], "execution": ["eager", "lazy"]}
    exclude = [{"framework": "numpy", "execution": "lazy"}]
    study = dqn_study(axes=axes, exclude=exclude, seeds=4, paper="sol-dqn-frameworks")
    plan = planned(directory / "p", study)
    generator = np.random.default_rng(0)
    for number, cell in enumerate(cells_by_key(plan, "framework", "execution")):
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


@pytest.fixture(scope="module")
def moving(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with flame graphs and videos."""
    directory = tmp_path_factory.mktemp("moving")
    study = dqn_study(axes={"framework": ["numpy", "torch"], "profile": ["none", "cprofile"]}, seeds=2)
    plan = planned(directory / "p", study)
    for cell in cells_of(plan):
        profiler = cell["config"].get("profile")
        write_record(plan, cell, header={"profile": profiler}, **({"profile": PROFILE} if profiler else {}))
        leave_agent(plan, cell)
    collect([plan], directory / "d", no_slurm())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HPCRL_ENVIRONMENTS", str(directory / "environments"))
        return api.report(directory / "d", directory / "r", figures=(), videos=(plan,)).html


def test_every_figure_is_drawn_and_the_console_is_silent(page: Path) -> None:
    with opened(page) as browser:
        figures = browser.find_elements(By.CSS_SELECTOR, ".drawing")
        assert len(figures) >= 20
        for figure in figures:
            browser.execute_script("arguments[0].scrollIntoView()", figure)
            until(lambda figure=figure: figure.find_elements(By.CSS_SELECTOR, "svg.marks, canvas.marks"), "a drawing")
            marks = figure.find_element(By.CSS_SELECTOR, "svg.marks, canvas.marks")
            until(lambda marks=marks: marks.get_attribute("aria-label"), "its name")
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
        ascending = [float(text.split()[0]) for text in column(browser, index)]
        assert ascending == sorted(ascending)
        heads[index].send_keys(Keys.ENTER)
        assert [float(text.split()[0]) for text in column(browser, index)] == ascending[::-1]
        assert browser.find_elements(By.CSS_SELECTOR, "th[aria-sort=descending]")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_serious(page: Path, dark: bool) -> None:
    with opened(page, dark=dark) as browser:
        # One figure of each kind, and one table of values: the others are built of the same parts.
        kept = ["wall-time", "return-by-step", "phases", "probability-of-improvement", "sol-02"]
        browser.execute_script(
            "for (const each of document.querySelectorAll('figure')) "
            "arguments[0].some(name => each.getAttribute('aria-labelledby').endsWith(`${name}-title`)) || each.remove()",
            kept,
        )
        browser.execute_script("document.querySelector('details.values').open = true")
        for drawing in browser.find_elements(By.CSS_SELECTOR, ".drawing"):
            browser.execute_script("draw(arguments[0].id)", drawing)
            until(lambda drawing=drawing: drawing.find_elements(By.CSS_SELECTOR, "svg.marks[aria-label]"), "a drawing")
        assert violations(browser) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_serious_in_flame_graphs_and_videos(moving: Path, dark: bool) -> None:
    with opened(moving, dark=dark) as browser:
        assert len(browser.find_elements(By.CSS_SELECTOR, "figure.flame svg[role=img]")) == 2
        assert len(browser.find_elements(By.CSS_SELECTOR, ".clips img")) == 4
        browser.execute_script(
            "for (const each of document.querySelectorAll('figure:not(.flame)')) each.remove(); "
            "for (const each of document.querySelectorAll('details')) each.open = true"
        )
        assert violations(browser) == []


def test_every_figure_s_values_are_reached_by_the_keyboard(page: Path) -> None:
    with opened(page) as browser:
        figures = browser.find_elements(By.TAG_NAME, "figure")
        for figure in figures:
            summary = figure.find_element(By.CSS_SELECTOR, "details.values > summary")
            summary.send_keys(Keys.ENTER)
            assert figure.find_element(By.CSS_SELECTOR, "details.values td").is_displayed()


def test_light_and_dark(page: Path) -> None:
    colours = []
    for dark in (False, True):
        with opened(page, dark=dark) as browser:
            body = browser.find_element(By.TAG_NAME, "body")
            colours.append(body.value_of_css_property("background-color"))
            first = browser.find_element(By.CSS_SELECTOR, ".drawing")
            until(lambda first=first: first.find_elements(By.CSS_SELECTOR, "svg.marks"), "a drawing")
            label = first.find_element(By.CSS_SELECTOR, "svg.marks text")
            colours.append(str(label.get_attribute("fill")))
    assert colours[0] != colours[2]
    assert colours[1] != colours[3]


@pytest.mark.parametrize("width", [360, 600, 1400])
def test_figures_follow_the_width_of_the_page(page: Path, width: int) -> None:
    with opened(page, width=width) as browser:
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False,
        })  # fmt: skip
        browser.execute_script("for (const id of Object.keys(specs)) draw(id)")
        drawings = browser.find_elements(By.CSS_SELECTOR, ".drawing")
        until(lambda: len(browser.find_elements(By.CSS_SELECTOR, "svg.marks, canvas.marks")) == len(drawings), "all")
        assert browser.execute_script("return document.documentElement.scrollWidth - window.innerWidth") <= 0
        cut = "const at = each => each.getBoundingClientRect(); return [...document.querySelectorAll('svg.marks')].filter(svg => at(svg).right > at(svg.closest('.drawing')).right + 1 || at(svg).width < 0.6 * at(svg.closest('.drawing')).width).length"
        assert browser.execute_script(cut) == 0
        beside = "return [...document.querySelectorAll('.figures > figure:not(.wide)')].map(each => Math.round(each.getBoundingClientRect().left))"
        assert len(set(browser.execute_script(beside))) == (2 if width >= 1200 else 1)


def test_the_first_screen_answers_the_question(page: Path) -> None:
    with opened(page, width=1400) as browser:
        screen = browser.find_element(By.CSS_SELECTOR, ".first").text
        for text in (
            "What was compared",
            "5 configurations with 4 seeds each",
            "2 threads",
            "What was found",
            "95 % interval",
            "Wall time",
            "did not complete",
        ):
            assert text in screen
        headings = [each.text for each in browser.find_elements(By.TAG_NAME, "h3")]
        order = (
            "Comparison",
            "Findings in full",
            "Figures",
            "The paper's figures",
            "Problems",
            "Machines and software",
        )
        assert [each for each in headings if each in order] == list(order)
        for link in browser.find_elements(By.CSS_SELECTOR, ".contents a"):
            target = str(link.get_attribute("href")).partition("#")[2]
            assert browser.find_elements(By.ID, target)


def test_what_is_printed_fits_the_paper(page: Path) -> None:
    """A4 is 210 mm wide and has two margins of 14 mm: 688 of CSS's pixels."""
    with opened(page, width=688, dark=True) as browser:
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": 688, "height": 1000, "deviceScaleFactor": 1, "mobile": False,
        })  # fmt: skip
        browser.execute_script("window.dispatchEvent(new Event('beforeprint'))")
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
        figures = browser.find_elements(By.CSS_SELECTOR, ".drawing")
        drawings = "svg.marks, canvas.marks"
        until(lambda: len(browser.find_elements(By.CSS_SELECTOR, drawings)) == len(figures), "every figure, drawn")
        for each in (
            *browser.find_elements(By.CSS_SELECTOR, drawings),
            *browser.find_elements(By.CSS_SELECTOR, "table"),
        ):
            if not each.is_displayed():
                continue  # the values of figures are not printed
            assert each.rect["x"] + each.rect["width"] <= 689, each.rect
        assert not any(each.is_displayed() for each in browser.find_elements(By.CSS_SELECTOR, ".vega-embed details"))
        label = browser.find_element(By.CSS_SELECTOR, "svg.marks text")
        assert label.get_attribute("fill") == "#1b1f24"  # dark ink, though the screen is dark
