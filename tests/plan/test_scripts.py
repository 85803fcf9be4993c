"""The scripts, run by bash, with a stand-in for the cell's Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpcrl.formats.plan import read_plan
from tests.builders import command_study, planned

# Appends its arguments to a log and ends with the code that stands in the file `codes` for its slot. With `block` it
# first says that it runs, then waits for a signal.
_PYTHON = """#!{python}
import os, signal, sys
from pathlib import Path
base = Path({base!r})
signals = {{signal.SIGTERM, signal.SIGUSR2}}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
slot = sys.argv[sys.argv.index("--slot") + 1] if "--slot" in sys.argv else "-"
caught = ""
if (base / "block").exists():
    (base / "runs").open("w").close()
    caught = " " + signal.sigwait(signals).name
start = os.environ["HPCRL_START"]
with (base / "log").open("a") as log:
    log.write(" ".join(sys.argv[1:]) + caught + "\\n")
with (base / "seen").open("a") as log:
    log.write(start + "\\t" + os.environ.get("HPCRL_ENVIRONMENTS", "") + "\\n")
codes = (base / "codes").read_text().split() if (base / "codes").exists() else []
sys.exit(int(codes[int(slot)]) if slot != "-" and codes else 0)
"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path


def script_of(base: Path, cells_per_task: int, seeds: int = 3) -> tuple[Path, str, dict[str, str]]:
    """Plan, build the stand-in, and return the plan, its first script and the variables to run it with."""
    plan = planned(base / "p", command_study(["true"], seeds=seeds), cells_per_task=cells_per_task)
    job = read_plan(plan).jobs[0]
    root = base / "environments with a space"
    environment = root / str(job.environment)
    (environment / "bin").mkdir(parents=True)
    (environment / "hpcrl-environment.json").touch()
    python = environment / "bin" / "python"
    python.write_text(_PYTHON.format(python=sys.executable, base=str(base)))
    python.chmod(0o755)
    return plan, job.script, {"PATH": os.environ["PATH"], "HPCRL_ENVIRONMENTS": str(root), "HOSTNAME": "here"}


def log_of(base: Path) -> list[str]:
    return (base / "log").read_text().splitlines()


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
