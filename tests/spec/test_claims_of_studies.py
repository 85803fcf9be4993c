"""The claims of the paper that a study names: `study check` and `plan` read them, a plan carries them, and the report misses none in silence."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcrl.collect.merge import collect
from hpcrl.spec.claims import read_claims
from hpcrl.spec.document import read_document
from hpcrl.spec.library import Library
from tests.builders import cells_of, dqn_study, write_record, write_yaml
from tests.collect.gathering import no_slurm
from tests.conftest import Shown

Call = Callable[..., Shown]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The study and the claims that docs/user-guide.md shows, letter by letter, in the working directory."""
    guide = (Path(__file__).parents[2] / "docs/user-guide.md").read_text()
    section = guide.partition("## The paper says, we measured")[2]
    claims, study = re.findall(r"^```yaml\n(.*?)^```", section, re.MULTILINE | re.DOTALL)[:2]
    directory = tmp_path / "project"
    (directory / "jobs/claims").mkdir(parents=True)
    (directory / "jobs/claims/my-paper.yaml").write_text(claims)
    (directory / "jobs/my-study.yaml").write_text(study)
    monkeypatch.chdir(directory)
    return directory


def test_the_guide_s_example_is_good(project: Path, hpcrl: Call) -> None:
    shown = hpcrl("study", "check", "my-study")
    assert (shown.code, shown.out, shown.err) == (0, "my-study: good, 8 cells\n", "")


@pytest.mark.parametrize("words", [("study", "check", "my-study"), ("plan", "--study", "my-study", "--dry-run")])
def test_a_mistake_in_the_claims_is_told_before_anything_runs(
    project: Path, hpcrl: Call, words: tuple[str, ...]
) -> None:
    file = project / "jobs/claims/my-paper.yaml"
    file.write_text(
        re.sub(r"configurations:.*", "configurations: {framework: numpy}", file.read_text(), flags=re.DOTALL)
    )
    shown = hpcrl(*words)
    assert shown.code == (1 if words[0] == "study" else 2)
    assert re.search(r"jobs/claims/my-paper\.yaml:\d+: claims\.1\.shown_by\.configurations: expected ", shown.err)


def test_a_paper_without_claims_is_told_with_the_nearest_name(project: Path, hpcrl: Call) -> None:
    study = project / "jobs/my-study.yaml"
    study.write_text(study.read_text().replace("my-paper", "my-papr"))
    note = (
        "no claims of paper 'my-papr' (did you mean 'my-paper'?): the report does not judge them, because the search path has no "
        "jobs/claims/my-papr.yaml"
    )
    shown = hpcrl("study", "check", "my-study")
    assert (shown.code, shown.out) == (0, "my-study: good, 8 cells\n")
    assert shown.err == f"hpcrl: jobs/my-study.yaml: {note}\n"
    shown = hpcrl("plan", "--study", "my-study", "-o", project / "plan")
    assert shown.code == 0
    assert f"N{note[1:]}." in shown.out.splitlines()
    assert not (project / "plan/jobs").exists()


def measured(project: Path, hpcrl: Call) -> Path:
    """Make a plan whose study names the paper, and a dataset in it."""
    axes = {"framework": ["numpy"], "execution": ["eager"]}
    write_yaml(project / "jobs/short.yaml", dqn_study(paper="my-paper", axes=axes, seeds=3, chain="staged"))
    assert hpcrl("plan", "--study", "short", "-o", project / "plan").code == 0
    for cell in cells_of(project / "plan"):
        write_record(project / "plan", cell)
    collect([project / "plan"], project / "plan/dataset", no_slurm())
    return project / "plan"


def test_a_plan_carries_its_paper_s_claims(
    project: Path, tmp_path: Path, hpcrl: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = project / "jobs/claims/my-paper.yaml"
    (project / "base").mkdir()
    base.rename(project / "base/all.yaml")
    write_yaml(base, {"extends": "base/all.yaml", "title": "Another title"})
    expected = Library().claims("my-paper")
    plan = measured(project, hpcrl).rename(tmp_path / "elsewhere")
    shutil.rmtree(project / "jobs")
    assert read_claims(read_document(plan / "jobs/claims/my-paper.yaml")) == expected
    (script,) = (plan / "scripts").glob("*-report.sbatch")
    (line,) = (line for line in script.read_text().splitlines() if line.startswith("exec "))
    monkeypatch.chdir(plan)
    shown = hpcrl(*line.split()[2:])
    assert (shown.code, shown.err) == (0, ""), line
    assert "The paper's claims: " in shown.out
    assert (plan / "report/claims.csv").exists()


def test_a_packaged_paper_s_claims_need_no_copy(project: Path, hpcrl: Call) -> None:
    settings = "paper=sol-dqn-frameworks"
    assert hpcrl("plan", "--study", "my-study", "--set", settings, "-o", project / "plan").code == 0
    assert not (project / "plan/jobs").exists()


@pytest.mark.parametrize(
    "paper", sorted(path.stem for path in (Path(__file__).parents[2] / "jobs/claims").glob("*.yaml"))
)
def test_claims_are_the_same_in_a_plan(tmp_path: Path, paper: str) -> None:
    claims = Library().claims(paper)
    (tmp_path / "claims.yaml").write_text(claims.as_text())
    assert read_claims(read_document(tmp_path / "claims.yaml")) == claims


def test_a_report_without_the_claims_says_where_it_looked(
    project: Path, tmp_path: Path, hpcrl: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = measured(project, hpcrl) / "dataset"
    monkeypatch.chdir(tmp_path)
    note = "the search path has no jobs/claims/my-paper.yaml"
    for words, page in ((("-o", "r"), "r/report.html"), (("--site", "s"), "s/short/index.html")):
        shown = hpcrl("report", dataset, "--figures", "none", *words)
        assert shown.code == 0
        (line,) = (line for line in shown.err.splitlines() if note in line)
        assert str(Path.home()) in line or "/nonexistent" in line
        assert line.endswith(": name another directory with --path")
        assert note in (tmp_path / page).read_text()
    shown = hpcrl("report", dataset, "--figures", "none", "-o", "q", "--path", project)
    assert note not in shown.err
    assert "The paper's claims: " in shown.out
