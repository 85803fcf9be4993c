"""The verbs from Python, as the user guide prints them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hpcrl
from hpcrl import api
from hpcrl.errors import SpecError, UsageError
from hpcrl.submit.status import Cancelled
from tests.builders import command_study, write_yaml
from tests.submit.test_local import ready  # noqa: F401

CODE = "import hpcrl, sys; hpcrl.log(score=float(sys.argv[1])); sys.exit(sys.argv[1] == '2')"


@pytest.fixture
def study(tmp_path: Path) -> Path:
    command = [sys.executable, "-c", CODE, "{seed}"]
    return write_yaml(tmp_path / "mine.yaml", command_study(command, seeds=2, score="score"))


def test_a_study_from_plan_to_dataset(study: Path, ready: object, tmp_path: Path) -> None:  # noqa: F811
    dry = api.plan(study, output=tmp_path / "p", settings={"seeds": 3}, dry_run=True)
    assert (dry.directory, dry.written, dry.plan.totals["cells"]) == (None, False, 3)
    assert not (tmp_path / "p").exists()
    ready(command_study([sys.executable, "-c", CODE, "{seed}"], seeds=2, score="score"))  # type: ignore[operator]
    place = tmp_path / "plan"
    done = api.submit(place)
    assert (done.tasks, done.already) == (2, 0)
    ended = api.wait(place)
    assert ended.counts() == {"COMPLETED": 1, "FAILED": 1}
    (failed,) = [each for each in api.status(place).cells if each.status.state == "FAILED"]
    assert failed.cell.config["seed"] == 2
    assert failed.status.reason == f"{sys.executable} ended with exit code 1"
    assert api.submit(place, failed=True).tasks == 1
    assert [state.counts() for state in api.follow(place)][-1] == {"COMPLETED": 1, "FAILED": 1}
    assert api.cancel(place) == Cancelled(0)
    collected = api.collect([place], tmp_path / "dataset")
    assert collected.outcomes == {"completed": 1, "failed": 1}
    assert list(hpcrl.load(tmp_path / "dataset", "runs")["seed"]) == [1]
    page = api.report(tmp_path / "dataset", tmp_path / "report", figures=()).html
    assert page.read_text().startswith("<!doctype html>")


def test_faults_are_exceptions_with_one_sentence(study: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere: is not a plan directory"):
        api.submit(tmp_path / "nowhere")
    with pytest.raises(SpecError, match="resources"):
        api.plan(study, output=tmp_path / "p", settings={"resources.tme": "1"})
    with pytest.raises(UsageError, match="--test-only needs Slurm"):
        api.plan(study, output=tmp_path / "p")
        api.test_only(tmp_path / "p")


def test_the_module_is_light() -> None:
    code = "import sys, hpcrl.api; print([name for name in ('pydantic', 'pandas', 'numpy', 'submitit', 'click') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
