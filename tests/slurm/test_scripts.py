"""The scripts of plans whose array tasks have several cells, run by a real Slurm."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.plan.standin import log_of, script_of
from tests.slurm.conftest import Cluster

pytestmark = pytest.mark.slurm
CALL = "-m hpcrl.run . --job mine-numpy-cpu-1 --index {} --submission hpcrl-token --slot {}"


def sbatch(plan: Path, script: str, root: str) -> tuple[str, subprocess.Popen[str]]:
    """Submit a script; return the job's id, and sbatch, which ends when the job does."""
    process = subprocess.Popen(
        ["sbatch", "--parsable", "--wait", script, "hpcrl-token", root],
        cwd=plan,
        env={key: value for key, value in os.environ.items() if key != "HPCRL_ENVIRONMENTS"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process.stdout.readline().strip(), process


def test_cells_of_a_task_run_after_one_another(sol: Cluster, tmp_path: Path) -> None:
    plan, script, variables = script_of(tmp_path, 3, seeds=5, cluster="sol")
    (tmp_path / "codes").write_text("0 3 0")
    _, process = sbatch(plan, script, variables["HPCRL_ENVIRONMENTS"])
    assert process.wait(timeout=120) == 3
    assert sorted(log_of(tmp_path)) == [CALL.format(index, slot) for index in range(2) for slot in range(3)]
    # Sol gives its jobs no variables: the environments' directory is an argument.
    seen = [line.split("\t") for line in (tmp_path / "seen").read_text().splitlines()]
    assert {root for _, root in seen} == {variables["HPCRL_ENVIRONMENTS"]}
    assert len({start for start, _ in seen}) == 2


def test_slurm_s_warning_reaches_the_cell_that_runs_and_the_next_goes_on(sol: Cluster, tmp_path: Path) -> None:
    plan, script, variables = script_of(tmp_path, 3, cluster="sol")
    os.mkfifo(tmp_path / "runs")
    (tmp_path / "block").touch()
    job, process = sbatch(plan, script, variables["HPCRL_ENVIRONMENTS"])
    for _ in range(3):
        (tmp_path / "runs").open().close()  # returns when the cell runs
        subprocess.run(["scancel", "--signal=USR2", job], check=True)  # the steps alone, as `--signal` does
    assert process.wait(timeout=120) == 0
    assert log_of(tmp_path) == [CALL.format(0, slot) + " SIGUSR2" for slot in range(3)]


def test_a_script_that_gets_term_waits_for_its_cell_and_starts_no_other(sol: Cluster, tmp_path: Path) -> None:
    plan, script, variables = script_of(tmp_path, 3, cluster="sol")
    os.mkfifo(tmp_path / "runs")
    (tmp_path / "block").touch()
    job, process = sbatch(plan, script, variables["HPCRL_ENVIRONMENTS"])
    (tmp_path / "runs").open().close()
    subprocess.run(["scancel", "--batch", "--signal=TERM", job], check=True)
    subprocess.run(["scancel", "--signal=USR2", job], check=True)
    assert process.wait(timeout=120) == 0
    assert log_of(tmp_path) == [CALL.format(0, 0) + " SIGUSR2"]
