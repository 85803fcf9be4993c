"""Videos of trained agents in the report: which seeds, whose agents, and what is missing."""

from __future__ import annotations

import base64
import io
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from hpcrl.catalogue.algorithms.dqn import Settings
from hpcrl.collect.merge import collect
from hpcrl.formats.plan import agent_file
from hpcrl.report import videos
from hpcrl.report.videos import chosen
from hpcrl.rl.agents import Agent
from hpcrl.rl.interfaces import Space
from tests.builders import cells_of, dqn_study, planned, write_record
from tests.collect.gathering import no_slurm
from tests.conftest import Shown
from tests.rl.builders import first_weights, made_of

SCORES = [10.0, 30.0, 20.0, 25.0, 5.0]


def leave_agent(plan: Path, cell: dict[str, Any]) -> None:
    """Write an agent that was never trained as the last one of a record written by hand."""
    algorithm = made_of("dqn", Settings(hidden=(8,)), Space(225, 5))
    agent = Agent(algorithm, first_weights(algorithm)["online"], None, "Doors-v0", origin={"attempt": "byhand-1"})
    agent.save(agent_file(plan, cell["id"], "last"))


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plan of five seeds with records, and agents of Doors that were never trained; collected into `d`."""
    monkeypatch.setenv("HPCRL_ENVIRONMENTS", str(tmp_path / "environments"))
    plan = planned(tmp_path / "p", dqn_study(seeds=5))
    for cell, score in zip(cells_of(plan), SCORES, strict=True):
        write_record(plan, cell, final_score=score)
        leave_agent(plan, cell)
    collect([plan], tmp_path / "d", no_slurm())
    return plan


def report(hpcrl: Callable[..., Shown], plan: Path, *words: Any) -> str:
    place = plan.parent
    shown = hpcrl("report", place / "d", "-o", place / "r", "--figures", "none", *words)
    assert shown.code == 0, shown.err
    return (place / "r/report.html").read_text()


def test_the_best_and_the_median_seed_are_filmed(plan: Path, hpcrl: Callable[..., Shown]) -> None:
    page = report(hpcrl, plan, "--videos", plan)
    assert re.findall(r"<summary>(NumPy eager.*?)</summary>", page) == [
        "NumPy eager on 1 core: best of 5 completed seeds",
        "NumPy eager on 1 core: median of 5 completed seeds",
    ]
    assert re.findall(r"Seed (\d), final score (\d+)\. This episode: return \S+ in 38 steps\.", page) == [
        ("2", "30"),
        ("3", "20"),
    ]
    found = [base64.b64decode(data) for data in re.findall(r'src="data:image/gif;base64,([^"]+)"', page)]
    assert len(found) == 2
    for data in found:
        with Image.open(io.BytesIO(data)) as video:
            assert video.size == (150, 150)
    assert "Not filmed" not in page
    assert "videos" not in report(hpcrl, plan)


def test_copies_of_a_plan_have_the_agents_of_the_cells_that_ran_in_them(
    plan: Path, hpcrl: Callable[..., Shown]
) -> None:
    copy = plan.parent / "copy"
    shutil.copytree(plan, copy)
    _, best, median, *_ = cells_of(plan)
    agent_file(plan, best["id"], "last").unlink()
    agent_file(copy, median["id"], "last").unlink()
    for places in ([plan, copy], [copy, plan]):
        page = report(hpcrl, plan, *(word for place in places for word in ("--videos", place)))
        assert page.count("data:image/gif;base64,") == 2 and "Not filmed" not in page


def test_what_is_not_filmed_is_said(plan: Path, hpcrl: Callable[..., Shown], monkeypatch: pytest.MonkeyPatch) -> None:
    cells = cells_of(plan)
    agent_file(plan, cells[1]["id"], "last").unlink()
    other = Agent(made_of("dqn", Settings(hidden=(8,)), Space(225, 5)), {}, None, "Doors-v0", origin={"attempt": "x-2"})
    file = agent_file(plan, cells[2]["id"], "last")
    weights = first_weights(other.algorithm)["online"]
    Agent(other.algorithm, weights, None, "Doors-v0", origin=other.origin).save(file)
    page = report(hpcrl, plan, "--videos", plan)
    assert "best of 5 completed seeds (seed 2): " in page and "cannot be read: No such file or directory" in page
    assert (
        "median of 5 completed seeds (seed 3): " in page
        and "is the agent of another attempt than the report&#39;s" in page
    )
    elsewhere = planned(plan.parent / "q", dqn_study(seeds=2))
    assert "is not among those of --videos" in report(hpcrl, plan, "--videos", elsewhere)
    monkeypatch.setattr(videos, "MOST_BYTES", 100)
    write_again = Agent(other.algorithm, weights, None, "Doors-v0", origin={"attempt": "byhand-1"})
    write_again.save(file)
    assert "its video has 0.0 MiB, and the maximum is 0 MiB" in report(hpcrl, plan, "--videos", plan)


def test_a_study_has_no_more_videos_than_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """One configuration has one seed, and each of the others has two videos: the last two would be one too many."""
    monkeypatch.setattr(videos, "_clip", lambda *words: words)
    groups = [{"what": f"{place:02}", "seed": seed} for place in range(13) for seed in (1, 2) if place or seed == 1]
    rows = pd.DataFrame(groups).assign(cluster="c", where="1 core", outcome="completed", final_score=1.0)
    found = videos.clips(rows, {}, lambda *words: None)  # type: ignore[arg-type]
    assert len(found.clips) == 23 < videos.MOST
    assert found.missing == ["1 more configurations: the page has at most 24 videos of a study"]


def test_a_site_has_videos_where_a_study_has_cells_of_the_plan(plan: Path, hpcrl: Callable[..., Shown]) -> None:
    other = planned(plan.parent / "q", dqn_study(seeds=1, name="without"))
    write_record(other, cells_of(other)[0], final_score=1.0)
    collect([other], plan.parent / "e", no_slurm())
    site = plan.parent / "s"
    shown = hpcrl("report", plan.parent / "d", plan.parent / "e", "--site", site, "--videos", plan)
    assert shown.code == 0, shown.err
    pages = {page.parent.name: page.read_text() for page in site.glob("*/index.html")}
    (filmed,) = pages.keys() - {"without"}
    assert pages[filmed].count("data:image/gif;base64,") == 2
    assert "data:image/gif" not in pages["without"] and "Not filmed" not in pages["without"]


def test_a_directory_that_is_no_plan_is_refused(plan: Path, hpcrl: Callable[..., Shown]) -> None:
    shown = hpcrl("report", plan.parent / "d", "--videos", plan.parent / "d")
    assert (shown.code, "is not a plan directory" in shown.err) == (2, True)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([4.0], [("the only completed seed", 1)]),
        ([4.0, 9.0], [("best of 2 completed seeds", 2), ("median of 2 completed seeds", 1)]),
        ([1.0, 2.0, 3.0, 4.0], [("best of 4 completed seeds", 4), ("median of 4 completed seeds", 2)]),
        ([7.0, 7.0, 7.0], [("best of 3 completed seeds", 1), ("median of 3 completed seeds", 2)]),
    ],
)
def test_the_choice_follows_the_scores_alone(scores: list[float], expected: list[tuple[str, int]]) -> None:
    cells = pd.DataFrame({"final_score": scores, "seed": range(1, len(scores) + 1)})
    assert [(which, cell["seed"]) for which, cell in chosen(cells)] == expected
