"""A study that trains nothing shows no words of reinforcement learning: on its page, in its tables, in the terminal."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hpcrl.cli.main import cli
from hpcrl.collect.merge import collect
from hpcrl.report.write import write_report
from tests.builders import cells_of, command_study, dqn_study, planned, write_record
from tests.collect.gathering import no_slurm

WORDS = re.compile(
    r"\b(agents?|episodes?|returns?|rewards?|learn\w*|train\w*|DQN|polic(y|ies)|evaluat\w*|goal|CartPole|"
    r"environment steps?|hyperparameters?)\b",
    re.IGNORECASE,
)


def visible(page: str) -> str:
    """Return what a reader sees of a page: its text without scripts and style, and what figures say."""
    text = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]+>", " ", text))


def measured(tmp_path: Path, content: dict[str, Any], **facts: Any) -> Path:
    plan = planned(tmp_path / "plan", content)
    for number, cell in enumerate(cells_of(plan)):
        known = {"training_time": 2.0 + number, "steps": 100, "episodes": None, "final_score": 5.0 + number} | facts
        write_record(plan, cell, returns=(), **known, outcome="failed" if number == 1 else "completed")
    collect([plan], tmp_path / "dataset", no_slurm())
    return tmp_path / "dataset"


CONTENT = command_study(
    ["true"],
    axes={"solver": ["cg", "lu"], "tasks": [1, 2]},
    seeds=3,
    score="residual",
    better="lower",
    title="A solver",
)


def test_no_word_of_it_on_the_page_or_beside_it(tmp_path: Path) -> None:
    dataset = measured(tmp_path, CONTENT)
    written = write_report(dataset, None, tmp_path / "report", (), baseline=dataset)
    page = visible(written.html.read_text())
    assert "residual" in page and "3 repeats each" in page and "Strong scaling" in page
    assert "command (s)" in page and "Problems" in page and "did not complete" in page
    assert WORDS.findall(page) + re.findall(r"\bseeds?\b", page) == []
    assert WORDS.findall(" ".join([*written.columns, *(str(each) for each in written.changes)])) == []
    for name in ("summary.csv", "cells.csv", "scaling.csv"):
        head = (tmp_path / "report" / name).read_text().partition("\n")[0]
        assert WORDS.findall(head.replace("_", " ")) == [], name


def test_no_word_of_it_in_the_terminal(tmp_path: Path) -> None:
    dataset = measured(tmp_path, CONTENT)
    study = str(tmp_path / "plan-study/study.yaml")
    for words in (
        ["plan", "--study", study, "-o", str(tmp_path / "other")],
        ["status", str(tmp_path / "plan")],
        ["report", str(dataset), "-o", str(tmp_path / "report"), "--figures", "none"],
    ):
        done = CliRunner().invoke(cli, words)
        said = re.sub(r"\S*/\S*", "", done.output)
        assert done.output and WORDS.findall(said) == [], (words, said)


def test_a_command_that_reports_a_return_trains(tmp_path: Path) -> None:
    """The words are there where they belong."""
    content = {name: value for name, value in CONTENT.items() if name not in ("score", "better")}
    page = visible(write_report(measured(tmp_path, content), None, tmp_path / "report", ()).html.read_text())
    assert "The last return that a run reported." in page and "median over seeds" in page


def test_training_keeps_its_words(tmp_path: Path) -> None:
    dataset = measured(tmp_path, dqn_study(seeds=3))
    page = visible(write_report(dataset, None, tmp_path / "report", ()).html.read_text())
    assert {"training", "goal"} <= {match[0].lower() for match in WORDS.finditer(page)}


@pytest.mark.parametrize("word", ["training", "Episodes", "policies", "learning curve", "environment steps"])
def test_the_list_of_words_finds_them(word: str) -> None:
    assert WORDS.search(f"the {word} of it")
