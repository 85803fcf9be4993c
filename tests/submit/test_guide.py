"""The user guide's newer parts as a user does them: plan, submit, collect."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

import hpcrl as package
from hpcrl.plan.expand import expand
from hpcrl.spec.study import Study
from tests.builders import command_study
from tests.conftest import Shown
from tests.submit.test_local import ready as ready

Call = Callable[..., Shown]
GUIDE = Path(__file__).parents[2] / "docs/user-guide.md"


def printed(word: str) -> dict[str, Any]:
    """Return the guide's example that has a word in it."""
    (found,) = (text for text in re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), re.S) if word in text)
    content = YAML(typ="safe").load(found)
    assert isinstance(content, dict)
    return content


def test_patterns_steps_axes_and_expectations_together(
    hpcrl: Call, ready: Callable[[dict[str, Any]], Path], tmp_path: Path
) -> None:
    code = "import sys; print(open('made').read(), 'copied at', sys.argv[1], 'MB/s', flush=True); open('out', 'w')"
    study = command_study(
        [sys.executable, "-c", code, "{rate}"],
        axes={},
        zip=[{"size": [1, 2], "name": ["small", "large"]}],
        computed={"rate": "size * 1000"},
        expect={"bandwidth": {"value": 1000, "within": "5 %"}},
        score="bandwidth",
    )
    study["workload"] |= {
        "start_in": "cell",
        "prepare": [sys.executable, "-c", "import sys; open('made', 'w').write(sys.argv[1])", "{name}"],
        "check": [sys.executable, "-c", "open('out')"],
        "metrics": printed("bandwidth: 'copied")["workload"]["metrics"],
    }
    plan = ready(study)
    assert hpcrl("submit", plan, "--wait").code == 1
    assert hpcrl("collect", plan, "-o", tmp_path / "d").code == 0
    rows = package.load(tmp_path / "d").to_dict("records")
    found = {json.loads(row["config"])["name"]: (row["outcome"], row["final_score"]) for row in rows}
    assert found == {"small": ("completed", 1000.0), "large": ("failed", 2000.0)}
    (reason,) = {row["reason"] for row in rows if row["outcome"] == "failed"}
    assert reason == "bandwidth: expected 1000 within 5 %, got 2000"
    assert "small copied at 1000 MB/s" in "".join(
        path.read_text(errors="replace") for path in (plan / "logs").rglob("*") if path.is_file()
    )
    phases = package.load(tmp_path / "d", "phases")
    assert {"prepare", "check"} <= set(phases["phase"])


def test_the_axes_of_the_guide() -> None:
    study = {"name": "x", "title": "X", "workload": {"algorithm": "dqn", "environment": "CartPole-v1"}}
    cells = list(expand(Study.model_validate(study | printed("\nzip:"))))
    assert len(cells) == 120
    assert {(each.config["batch_size"], each.resources.cpus, each.resources.memory) for each in cells} == {
        (64, 1, 2048), (128, 2, 4096), (256, 4, 8192),
    }  # fmt: skip


@pytest.mark.parametrize("word", ["expect: ", "-o, stream", "launch: mpi"])
def test_the_other_examples_of_the_guide_are_good(word: str) -> None:
    study = command_study(["run"], axes={"size": [1]})
    example = printed(word)
    study["workload"] |= example.pop("workload", {})
    Study.model_validate(study | example)
