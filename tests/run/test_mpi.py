"""An MPI program as the workload: its ranks are the cell's tasks."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hpcrl as package
from hpcrl.collect.merge import collect
from hpcrl.errors import SpecError, UsageError
from hpcrl.rl.topologies.ports import GRACE_SECONDS
from hpcrl.run.interrupt import _STUCK_SECONDS
from hpcrl.run.ranks import _mpirun, start_ranks
from hpcrl.slurm.client import Slurm
from tests.builders import cells_of, command_study, dqn_study, planned, write_yaml
from tests.conftest import Shown

needs_mpi = pytest.mark.skipif(not (shutil.which("mpicc") and shutil.which("mpirun")), reason="needs Open MPI or MPICH")


def small(**changes: Any) -> dict[str, Any]:
    """The packaged study with a plate of 1,000 rows, on one rank and on two."""
    return {
        "extends": "scaling",
        "axes": {"problem": [{"tasks": tasks, "rows": 1000} for tasks in (1, 2)]},
        "seeds": 1,
        "chain": "parallel",
    } | changes


def run(plan: Path, cell: dict[str, Any], **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a cell as the script of its job would."""
    words = [
        "-m",
        "hpcrl.run",
        ".",
        "--cell",
        cell["id"],
        "--ranks",
        str(cell["resources"]["tasks"]),
        "--interval",
        "0.1",
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    return subprocess.run(
        [sys.executable, *words], cwd=plan, env=environment | {"PYTHONPATH": "worker.zip"} | variables,
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


@needs_mpi
def test_the_packaged_program_computes_the_same_on_any_number_of_ranks(tmp_path: Path) -> None:
    plan = planned(tmp_path / "plan", small())
    done = {cell["resources"]["tasks"]: run(plan, cell) for cell in cells_of(plan)}
    for ranks, each in done.items():
        assert each.returncode == 0, each.stderr
        assert each.stdout.count(f"ranks {ranks}, grid 1000 x 2048") == 1  # one program, and not two of one rank
    collect([plan], tmp_path / "dataset", Slurm())
    rows = package.load(tmp_path / "dataset").set_index("tasks")
    assert rows["outcome"].tolist() == ["completed"] * 2
    assert rows["records"].to_dict() == {1: 1, 2: 2}
    assert (rows["final_score"] > 0).all() and (rows["cpu_seconds"] > 0).all()
    # The telemetry sees both ranks: the grids, and what each of them needs besides, together more than the compiler before them.
    assert 32e6 < rows["memory_peak"][1] < rows["memory_peak"][2]
    values = package.load(tmp_path / "dataset", "episodes")
    changes = values[values["name"] == "largest_change"]["value"]
    assert len(changes) == 2 and changes.nunique() == 1


@needs_mpi
def test_a_rank_that_fails_ends_the_cell_and_says_why(tmp_path: Path) -> None:
    plan = planned(tmp_path / "plan", small(axes={"problem": [{"tasks": 2, "rows": 1}]}))
    (cell,) = cells_of(plan)
    done = run(plan, cell)
    assert done.returncode != 0
    assert "heat: ROWS: expected at least one for each of 2 ranks, got 1" in done.stderr
    collect([plan], tmp_path / "dataset", Slurm())
    (row,) = package.load(tmp_path / "dataset").to_dict("records")
    assert row["outcome"] == "failed"


def test_without_mpirun_it_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="mpirun: not found on PATH"):
        start_ranks(["true"], 2, "None", "none", "a", "mpi")


@pytest.mark.parametrize("cluster", ["sol", "cirrus"])
def test_the_packaged_study_is_planned_on_a_cluster(tmp_path: Path, cluster: str) -> None:
    plan = planned(tmp_path / "plan", "scaling", cluster)
    assert len(cells_of(plan)) == 21
    assert list(plan.glob("workdir-*/heat.c"))  # the plan runs on another machine
    script = next(iter(sorted(plan.glob("scripts/scaling-numpy-cpu-4*.sbatch")))).read_text()
    assert "exec srun --ntasks=8 --cpus-per-task=1" in script


def test_training_has_no_launcher_of_its_own(tmp_path: Path) -> None:
    content = dqn_study()
    content["workload"]["launch"] = "mpi"
    with pytest.raises(SpecError, match="`launch` is for commands"):
        planned(tmp_path / "plan", content)


@pytest.mark.parametrize(
    ("axes", "scaling", "fault"),
    [
        ({"tasks": [1, 2]}, {"size": "rows"}, "scaling.size: no axis 'rows'"),
        ({"tasks": [1, 2], "rows": [10, 0]}, {"size": "rows"}, "axes.rows.1: expected a number above 0, because it is the size of the problem (`scaling`), got 0"),
        ({"tasks": [1, 2], "rows": ["big"]}, {"size": ["rows"]}, "axes.rows.0: expected a number above 0, because it is the size of the problem (`scaling`), got 'big'"),
        ({"tasks": [1, 2], "rows": [True]}, {"size": ["rows"]}, "(`scaling`), got true"),
        ({"rows": [1, 2]}, {"size": "rows"}, "scaling: needs cells with different numbers of cores: make `tasks`, `cpus` or `nodes` an axis"),
        ({"tasks": [1, 2]}, {"size": "tasks"}, "scaling.size: no axis 'tasks'"),
        ({"tasks": [1, 2]}, {"size": []}, "scaling.size"),
        ({"tasks": [1, 2]}, {"siz": "rows"}, "scaling.siz"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_scaling_is_said_with_its_line(
    tmp_path: Path, hpcrl: Callable[..., Shown], axes: dict[str, Any], scaling: dict[str, Any], fault: str
) -> None:
    path = write_yaml(tmp_path / "mine.yaml", command_study(["true"], axes=axes, scaling=scaling))
    done = hpcrl("plan", "--study", path, "-o", tmp_path / "plan")
    assert done.code == 2
    assert fault in done.err
    line = next(text for text in done.err.splitlines() if fault in text).removeprefix("hpcrl: ")
    assert line.startswith(f"{path}:") and line.removeprefix(f"{path}:").partition(":")[0].isdigit()


def test_mpirun_ends_the_other_ranks_of_a_dead_one_within_ten_seconds(tmp_path: Path) -> None:
    """Open MPI waits so many seconds before TERM, and as long before KILL. Between the two, ranks that wait for the dead one give up."""
    written, mpirun = tmp_path / "words", tmp_path / "mpirun"
    lines = [
        "#!/bin/sh",
        'if [ "$1" = --version ]; then echo "mpirun (Open MPI) 4.1.4"; exit; fi',
        f"printf '%s\\n' \"$@\" > {shlex.quote(str(written))}",
    ]
    mpirun.write_text("\n".join([*lines, ""]))
    mpirun.chmod(0o755)
    assert _mpirun(str(mpirun), ["program"], 3, {}).wait(60) == 0
    words = written.read_text().split("\n")
    seconds = int(words[words.index("odls_base_sigkill_timeout") + 1])
    assert 2 * seconds < 10
    assert GRACE_SECONDS < _STUCK_SECONDS < seconds
