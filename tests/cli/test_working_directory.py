"""A working directory of somebody else: nothing in it runs because it lies there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcrl import api
from tests.builders import cells_of, dqn_study, planned, write_record

# What Pythons import that hpcrl starts: of the standard library, of the packages it needs, and hpcrl itself.
NAMES = (
    "json",
    "multiprocessing",
    "pickle",
    "struct",
    "resource",
    "numpy",
    "pyarrow",
    "vl_convert",
    "pip",
    "submitit",
    "hpcrl",
)


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    place = tmp_path / "trap"
    place.mkdir()
    for name in NAMES:
        (place / f"{name}.py").write_text(
            f"open({str(tmp_path / 'sprung')!r}, 'a').write({name!r} + chr(10))\nraise SystemExit(9)\n"
        )
    return place


def run(trap: Path, *words: object) -> None:
    program = Path(sys.executable).parent / "hpcrl"
    done = subprocess.run(
        [program, *map(str, words)], cwd=trap, env=os.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    sprung = trap.parent / "sprung"
    assert not sprung.exists(), sprung.read_text()


def test_collecting_and_reporting(trap: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(tmp_path / "plan", dqn_study(seeds=2))
    for cell in cells_of(plan):
        write_record(plan, cell)
    monkeypatch.chdir(trap)
    monkeypatch.setattr("hpcrl.collect.merge.BATCH_RECORDS", 1)
    assert api.collect([plan], tmp_path / "dataset", processes=2).merged == 2
    run(trap, "report", tmp_path / "dataset", "-o", tmp_path / "report", "--figures", "svg")


@pytest.mark.slow
def test_checking_an_environment(trap: Path) -> None:
    run(trap, "env", "create", "numpy")
    run(trap, "env", "check", "numpy")


@pytest.mark.slow
def test_running_a_cell(trap: Path, tmp_path: Path) -> None:
    """Its telemetry too, and the ranks of a training."""
    run(trap, "env", "create", "numpy")
    training = {"algorithm": "dqn", "environment": "CartPole-v1", "hyperparameters": {"total_steps": 300}}
    plan = planned(tmp_path / "plan", dqn_study(workload=training))
    (cell,) = cells_of(plan)
    run(trap, "run", plan, "--cell", cell["id"], "--interval", "0.1")
