"""The scripts, run by bash, with a stand-in for the cell's Python."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hpcrl.formats.ledger import Ledger
from hpcrl.formats.plan import read_cells, read_plan
from tests.builders import command_study, granted, planned
from tests.plan.standin import log_of, script_of, stand_in


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path


def test_a_script_by_hand_needs_no_arguments(base: Path) -> None:
    plan, script, variables = script_of(base, 1)
    subprocess.run(["bash", script], cwd=plan, env=variables | {"HPCRL_TASK": "2"}, check=True)
    assert log_of(base) == ["-m hpcrl.run . --job mine-numpy-cpu-1 --index 2 --ranks 1"]


def test_token_and_environments_are_arguments(base: Path) -> None:
    plan, script, variables = script_of(base, 1)
    root = variables.pop("HPCRL_ENVIRONMENTS")
    for _ in range(2):
        subprocess.run(["bash", script, "hpcrl-1 2", root], cwd=plan, env=variables, check=True)
    assert log_of(base)[0] == "-m hpcrl.run . --job mine-numpy-cpu-1 --index 0 --submission hpcrl-1 2 --ranks 1"
    seen = [line.split("\t") for line in (base / "seen").read_text().splitlines()]
    assert {told for _, told in seen} == {root}
    starts = {start for start, _ in seen}
    assert len(starts) == 2
    assert all(start.startswith("here-") for start in starts)


def test_the_cells_of_several_environments_share_the_job_of_their_resources(base: Path) -> None:
    axes = {"framework": ["torch", "jax", "numpy"], "cpus": [1, 2]}
    apart = read_plan(planned(base / "apart", command_study(["true"], axes=axes, seeds=5), "sol"))
    assert len([job for job in apart.jobs if job.stage == "cells"]) == 6
    directory = planned(base / "p", command_study(["true"], axes=axes, seeds=5, one_job_per="resources"), "sol")
    plan = read_plan(directory)
    jobs = [job for job in plan.jobs if job.stage == "cells"]
    assert [(job.name, job.count, job.environment) for job in jobs] == [
        ("mine-cells-1", 15, None),
        ("mine-cells-2", 15, None),
    ]
    cells = [cell for cell in read_cells(directory, plan) if cell.resources["cpus"] == 2]
    variables = stand_in(base, sorted({cell.environment for cell in cells}))
    tasks = [4, 5, 9, 11]  # of a retry, whose array has indices of its own
    made = Ledger(directory, create=True).intend(replace(granted(directory, "4,5,9,11", attempt=2), job="mine-cells-2"))
    for index in range(len(tasks)):
        given = variables | {"SLURM_ARRAY_TASK_ID": str(index)}
        subprocess.run(["bash", jobs[1].script, made.token], cwd=directory, env=given, check=True)
    for task in tasks:
        subprocess.run(["bash", jobs[1].script], cwd=directory, env=variables | {"HPCRL_TASK": str(task)}, check=True)
    assert (base / "chosen").read_text().split() == [cells[task].environment for task in tasks] * 2


@pytest.mark.parametrize(("codes", "expected"), [("0 0 0", 0), ("0 3 0", 3), ("2 3 0", 2)])
def test_cells_of_a_task_run_after_one_another_whatever_becomes_of_each(base: Path, codes: str, expected: int) -> None:
    plan, script, variables = script_of(base, 3)
    (base / "codes").write_text(codes)
    done = subprocess.run(["bash", script, "T"], cwd=plan, env=variables, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (expected, "")
    call = "-m hpcrl.run . --job mine-numpy-cpu-1 --index 0 --submission T --ranks 1 --slot"
    assert log_of(base) == [f"{call} {slot}" for slot in range(3)]
    assert len(set((base / "seen").read_text().splitlines())) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_reaches_the_cell_that_runs_and_no_further_cell_starts(base: Path, number: signal.Signals) -> None:
    plan, script, variables = script_of(base, 3)
    os.mkfifo(base / "runs")
    (base / "block").touch()
    process = subprocess.Popen(["bash", script, "T"], cwd=plan, env=variables, stderr=subprocess.PIPE, text=True)
    (base / "runs").open().close()  # returns when the cell runs
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert [line.rpartition("--slot ")[2] for line in log_of(base)] == [f"0 {number.name}"]


def test_on_slurm_the_script_leaves_signals_to_slurm_and_waits(base: Path) -> None:
    """Slurm signals the step itself. The script only must not end before the step does."""
    plan, script, variables = script_of(base, 3)
    os.mkfifo(base / "runs")
    (base / "block").touch()
    (base / "bin").mkdir()
    srun = base / "bin" / "srun"
    # Passes over its own options and runs the rest as a step of which the test is told the process.
    srun.write_text(
        "#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\necho $$ > " + f"'{base}/step'" + '\nexec "$@"\n'
    )
    srun.chmod(0o755)
    variables |= {"PATH": f"{base / 'bin'}:{variables['PATH']}", "SLURM_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1"}
    process = subprocess.Popen(["bash", script, "T"], cwd=plan, env=variables)
    (base / "runs").open().close()
    process.send_signal(signal.SIGTERM)
    os.kill(int((base / "step").read_text()), signal.SIGUSR2)
    assert process.wait(timeout=60) == 0
    # The cell got Slurm's signal alone; the script heard TERM, so it starts no other.
    assert log_of(base) == ["-m hpcrl.run . --job mine-numpy-cpu-1 --index 1 --submission T --slot 0 SIGUSR2"]


def test_the_stage_of_environments_is_told_its_submission(base: Path) -> None:
    directory = planned(base / "p", command_study(["true"], chain="staged"))
    launcher = directory / "launchers" / str(os.getuid())
    launcher.parent.mkdir()
    launcher.write_text('#!/bin/sh\nprintf "%s|" "$@"')
    launcher.chmod(0o755)
    script = ["bash", "scripts/mine-environments.sbatch"]
    for given, told in (([], ""), (["hpcrl-1 2", "/root of"], "--submission|hpcrl-1 2|")):
        done = subprocess.run([*script, *given], cwd=directory, check=True, capture_output=True, text=True)
        assert done.stdout == f"env|create|--plan|.|{told}"
