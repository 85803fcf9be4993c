"""Sites of several reports, and whose templates a report is made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hpcrl.collect.merge import collect
from tests.builders import cells_of, dqn_study, planned, write_record
from tests.collect.gathering import no_slurm


def dataset(directory: Path, *names: str) -> Path:
    plans = [planned(directory / name, dqn_study(name=name, title=f"Of {name} & more", seeds=2)) for name in names]
    for plan in plans:
        for cell in cells_of(plan):
            write_record(plan, cell)
    collect(plans, directory / "dataset", no_slurm())
    return directory / "dataset"


def test_a_site_has_an_index_and_a_report_of_each_study(tmp_path: Path, hpcrl: Callable[..., Any]) -> None:
    first, second = dataset(tmp_path / "a", "one", "two"), dataset(tmp_path / "b", "three")
    shown = hpcrl("report", first, second, "--site", tmp_path / "site")
    assert shown.code == 0, shown.err
    assert shown.out.splitlines()[-1] == f"Site: {tmp_path / 'site/index.html'}"
    index = (tmp_path / "site/index.html").read_text()
    assert "<script" not in index
    for name in ("one", "two", "three"):
        assert f'<a href="{name}/index.html">Of {name} &amp; more</a>' in index
        page = (tmp_path / "site" / name / "index.html").read_text()
        assert f"Of {name} &amp; more" in page
        assert 'src="' not in page.partition("<script>")[0]
        assert set(pd.read_csv(tmp_path / "site" / name / "summary.csv")["study"]) == {name}
        assert (tmp_path / "site" / name / f"{name}.tex").exists()
    assert not (tmp_path / "site/one/figures").exists()


def test_studies_of_one_name_are_told_apart_by_their_datasets(tmp_path: Path, hpcrl: Callable[..., Any]) -> None:
    first, second = dataset(tmp_path / "a", "one"), dataset(tmp_path / "b", "one")
    shown = hpcrl("report", first, second, "--site", tmp_path / "site")
    assert shown.code == 2
    assert "another dataset with this name has a study 'one'" in shown.err
    second = second.rename(tmp_path / "b/newer")
    assert hpcrl("report", first, second, "--site", tmp_path / "site").code == 0
    assert {path.parent.name for path in (tmp_path / "site").glob("*/index.html")} == {"one-dataset", "one-newer"}
    index = (tmp_path / "site/index.html").read_text()
    for name in ("dataset", "newer"):
        assert f'<a href="one-{name}/index.html">Of one &amp; more ({name})</a>' in index


def test_a_dataset_that_is_named_twice_is_taken_once(
    tmp_path: Path, hpcrl: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset(tmp_path, "one")
    monkeypatch.chdir(tmp_path)
    shown = hpcrl("report", "dataset", "./dataset", tmp_path / "dataset", "--site", "site")
    assert shown.code == 0, shown.err
    assert [path.parent.name for path in Path("site").glob("*/index.html")] == ["one"]


def test_a_file_in_the_way_of_a_report_is_named(tmp_path: Path, hpcrl: Callable[..., Any]) -> None:
    first, file = dataset(tmp_path, "one"), tmp_path / "file"
    file.touch()
    shown = hpcrl("report", first, "-o", file)
    why = f"cannot be written, because {file} is a file: choose another directory, or move that file"
    assert (shown.code, shown.err) == (1, f"hpcrl: {file / 'report.html'}: {why}\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/figures").touch()
    shown = hpcrl("report", first, "-o", tmp_path / "full", "--figures", "svg")
    assert shown.code == 1
    assert f"cannot be written, because {tmp_path / 'full/figures'} is a file: choose" in shown.err
    assert "nothing was left" not in shown.err


@pytest.mark.parametrize(
    ("options", "text"),
    [((), "expected one dataset"), (("--site", "s", "--baseline", "b"), "--baseline: is for a single report")],
)
def test_what_does_not_go_together(
    tmp_path: Path, hpcrl: Callable[..., Any], options: tuple[str, ...], text: str
) -> None:
    shown = hpcrl("report", tmp_path, tmp_path, *options)
    assert shown.code == 2
    assert text in shown.err


def test_the_template_that_wins_in_the_list_makes_the_report(tmp_path: Path, hpcrl: Callable[..., Any]) -> None:
    own = tmp_path / "mine/templates/report"
    own.mkdir(parents=True)
    page = '{% extends "packaged/report/report.html.j2" %}{% block footer %}The group of {{ sections | length }}{% endblock %}'
    (own / "report.html.j2").write_text(page)
    listed = hpcrl("template", "list", "--path", tmp_path / "mine")
    (line,) = [line for line in listed.out.splitlines() if line.startswith("report/report.html\t")]
    assert line.endswith(str(own / "report.html.j2"))
    given = dataset(tmp_path, "one")
    options = ("--figures", "none", "-o", tmp_path / "r")
    assert hpcrl("report", given, *options, "--path", tmp_path / "mine").code == 0
    assert "The group of 1</footer>" in (tmp_path / "r/report.html").read_text()
    assert hpcrl("report", given, *options).code == 0
    assert "The group of" not in (tmp_path / "r/report.html").read_text()


def test_a_fault_in_a_template_is_told_with_its_line(tmp_path: Path, hpcrl: Callable[..., Any]) -> None:
    own = tmp_path / "mine/templates/report"
    own.mkdir(parents=True)
    (own / "section.html.j2").write_text("<p>\n{% if section.study %}\n")
    shown = hpcrl(
        "report", dataset(tmp_path, "one"), "-o", tmp_path / "r", "--figures", "none", "--path", tmp_path / "mine"
    )
    assert shown.code == 2
    assert "section.html.j2:2: template:" in shown.err


def test_the_page_of_claims_is_a_partial_that_need_not_be_there(tmp_path: Path, hpcrl: Callable[..., Any]) -> None:
    own = tmp_path / "mine/templates/report"
    own.mkdir(parents=True)
    (own / "claims.html.j2").write_text("claims of {{ section.study }}: {{ section.claims }}")
    given = dataset(tmp_path, "one")
    options = ("--figures", "none", "-o", tmp_path / "r", "--path", tmp_path / "mine")
    assert hpcrl("report", given, *options).code == 0
    assert "claims of one: []" in (tmp_path / "r/report.html").read_text()
