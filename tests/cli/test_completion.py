"""What a shell offers, asked as bash asks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import cells_of, command_study, planned


def offered(line: str, cwd: Path) -> list[str]:
    words = line.split(" ")
    done = subprocess.run(
        [sys.executable, "-c", "from hpcrl.cli.main import cli; cli(prog_name='hpcrl')"],
        env={**os.environ, "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_HPCRL_COMPLETE": "bash_complete"},
        cwd=cwd, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    return [text.partition(",")[2] for text in done.stdout.splitlines() if text]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("hpcrl plan --cluster s", ["sol"]),
        ("hpcrl plan --study sol-", ["sol-dqn", "sol-dqn-goal"]),
        ("hpcrl cluster show cir", ["cirrus", "cirrus-legacy"]),
        ("hpcrl env create t", ["tensorflow", "torch", "torch-jax"]),
        ("hpcrl study show qu", ["quickstart"]),
    ],
)
def test_names_of_files(tmp_path: Path, line: str, expected: list[str]) -> None:
    assert offered(line, tmp_path) == expected


def test_cells_of_the_plan_that_the_line_names(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", command_study(["true"], seeds=3))
    ids = [cell["id"] for cell in cells_of(plan)]
    assert offered("hpcrl cancel p --cell ", tmp_path) == ids
    assert offered(f"hpcrl logs p --cell {ids[1][:8]}", tmp_path) == [ids[1]]
    assert offered("hpcrl cancel --cell ", tmp_path) == []
