"""Where a user's own script runs, what it finds there, and telemetry that its variables cannot end."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hpcrl as package
from hpcrl.collect.merge import collect
from hpcrl.errors import SpecError, UsageError
from hpcrl.formats.attempts import read_attempts
from hpcrl.formats.plan import read_plan
from hpcrl.slurm.client import Slurm
from hpcrl.spec.library import Library
from tests.builders import cells_of, command_study, planned, run_task, write_yaml
from tests.conftest import Shown
from tests.run.test_cell import only_record

JOB = "mine-numpy-cpu-1"
SCRIPT = """\
import hpcrl, os, sys
from helper import VALUE
hpcrl.log(value=VALUE, step=int(sys.argv[1]))
open("here.txt", "a").write("x")
print(os.getcwd())
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's project: a script, a module that it imports, and a program."""
    place = tmp_path / "a project"
    place.mkdir()
    (place / "train.py").write_text(SCRIPT)
    (place / "helper.py").write_text("VALUE = 1\n")
    (place / "run.sh").write_text(f'#!/bin/sh\nexec "{sys.executable}" train.py "$@"\n')
    (place / "run.sh").chmod(0o755)
    (place / ".secret").touch()
    (place / "__pycache__").mkdir()
    (place / "__pycache__/x.pyc").touch()
    return place


def study(project: Path, where: str = "mine.yaml", **workload: Any) -> Path:
    content = command_study([sys.executable, "train.py", "{seed}"])
    content["workload"] |= workload
    return write_yaml(project / where, content)


@pytest.mark.parametrize("where", ["mine.yaml", "jobs/mine.yaml"])
def test_a_script_beside_its_study_runs_there(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    plan = planned(tmp_path / "plan", str(study(project, where)))
    monkeypatch.chdir(tmp_path)
    done = run_task(plan, JOB)
    assert done.returncode == 0, done.stderr
    assert (project / "here.txt").exists()
    data = only_record(plan)
    assert data.values[0]["values"] == {"value": 1.0}
    assert data.header["code"]["workdir"] == str(project)
    assert any(
        f"commands start in {project}: it must exist on the nodes" in note for note in read_plan(plan).totals["notes"]
    )


def test_a_program_of_the_working_directory(project: Path, tmp_path: Path) -> None:
    plan = planned(tmp_path / "plan", str(study(project, command=["./run.sh", "{seed}"])))
    assert run_task(plan, JOB).returncode == 0


def test_a_copy_runs_what_was_planned(project: Path, tmp_path: Path) -> None:
    plan = planned(tmp_path / "plan", str(study(project, command=["./run.sh", "{seed}"], copy_workdir=True)))
    shutil.rmtree(project)
    moved = plan.rename(tmp_path / "moved")
    done = run_task(moved, JOB)
    assert done.returncode == 0, done.stderr
    (copy,) = moved.glob("workdir-*")
    assert {path.name for path in copy.iterdir()} - {"here.txt", "__pycache__"} == {
        "train.py", "helper.py", "run.sh", "mine.yaml",
    }  # fmt: skip
    data = only_record(moved)
    assert data.values[0]["values"] == {"value": 1.0}
    assert data.header["code"]["workdir"] == str(project)
    collect([moved], tmp_path / "d", Slurm())
    assert list(package.load(tmp_path / "d")["workdir"]) == [str(project)]


def test_a_changed_copy_is_a_new_generation_with_the_same_cells(
    project: Path, tmp_path: Path, hpcrl: Callable[..., Shown]
) -> None:
    file = study(project, copy_workdir=True)
    words = ("plan", "--study", file, "-o", tmp_path / "plan")
    assert hpcrl(*words).code == 0
    first = read_plan(tmp_path / "plan")
    assert hpcrl(*words).code == 0
    assert read_plan(tmp_path / "plan") == first
    (project / "helper.py").write_text("VALUE = 2\n")
    shown = hpcrl(*words)
    assert shown.code == 0, shown
    second = read_plan(tmp_path / "plan")
    assert second.generation == first.generation + 1
    assert second.workload["workdir"] != first.workload["workdir"]
    assert (tmp_path / "plan" / first.workload["workdir"] / "helper.py").read_text() == "VALUE = 1\n"
    assert second.cells_file == first.cells_file


def test_what_is_too_large_is_not_copied(project: Path, tmp_path: Path) -> None:
    with (project / "data.bin").open("wb") as file:
        file.truncate(100 * 2**20)
    with pytest.raises(UsageError, match="expected at most 5000 files and 64 MiB, got more: keep data elsewhere"):
        planned(tmp_path / "plan", str(study(project, copy_workdir=True)))
    assert not (tmp_path / "plan").exists()


def test_each_cell_has_a_directory_of_its_own(project: Path, tmp_path: Path) -> None:
    (project / "own.py").write_text(
        "import helper, os; assert os.getcwd() == os.environ['HPCRL_CELL_DIR'], os.getcwd(); open('out', 'x').close()"
    )
    content = command_study([sys.executable, "{workdir}/own.py"], seeds=2)
    content["workload"]["start_in"] = "cell"
    plan = planned(tmp_path / "plan", str(write_yaml(project / "own.yaml", content)))
    for index in (0, 1):
        assert run_task(plan, JOB, index).returncode == 0
    assert len(list(plan.glob("cells/*/out"))) == 2


def test_an_empty_cell_directory_is_not_kept(project: Path, tmp_path: Path) -> None:
    plan = planned(tmp_path / "plan", str(study(project)))
    assert run_task(plan, JOB).returncode == 0
    assert list((plan / "cells").iterdir()) == []


def test_a_working_directory_that_is_gone(project: Path, tmp_path: Path) -> None:
    plan = planned(tmp_path / "plan", str(study(project)))
    shutil.rmtree(project)
    assert run_task(plan, JOB).returncode == 1
    footer = only_record(plan).footer
    assert footer is not None
    assert footer["reason"] == f"workdir: {project}: no such directory on {os.uname().nodename}"


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (
            {"metrics": {"tensorboard": "runs"}},
            "cells that run at the same time would share runs: add `start_in: cell`",
        ),
        ({"metrics": {}}, "name at least one of tensorboard, csv, wandb"),
        ({"metrics": {"csv": "{cell}.csv", "stepp": "x"}}, "stepp"),
        ({"command": ["echo", "{oops}"]}, r"{oops} is not an axis.*\(write {{oops}} for plain braces\)"),
    ],
)
def test_faults_of_a_study(project: Path, workload: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Library().study(str(study(project, **workload)))


def test_braces_and_shell_variables(tmp_path: Path) -> None:
    code = 'printf "%s|%s|%s" "${NAME}" "$1" "$2" > ' + str(tmp_path / "out")
    content = command_study(["sh", "-c", code, "sh", "{{seed}}", '{"a": {"b": {seed}}}'])
    content["workload"]["env"] = {"NAME": "from the study"}
    plan = planned(tmp_path / "plan", content)
    assert run_task(plan, JOB).returncode == 0
    assert (tmp_path / "out").read_text() == 'from the study|{seed}|{"a": {"b": 1}}'


def test_a_study_s_pythonpath_joins_and_harms_no_telemetry(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "own.py").write_text("VALUE = 7\n")
    (mine / "psutil.py").write_text("raise SystemExit('not the psutil of the sampler')\n")
    content = command_study([sys.executable, "-c", "import hpcrl, own; hpcrl.log(value=own.VALUE)"])
    content["workload"]["env"] = {"PYTHONPATH": str(mine)}
    plan = planned(tmp_path / "plan", content)
    done = run_task(plan, JOB)
    assert done.returncode == 0, done.stderr
    data = only_record(plan)
    assert data.values[0]["values"] == {"value": 7.0}
    assert len(data.column("samples", "time")) >= 1
    assert read_attempts(plan).unmeasured == 0


def test_telemetry_that_did_not_run_is_said(tmp_path: Path, hpcrl: Callable[..., Shown]) -> None:
    plan = planned(tmp_path / "plan", command_study(["sleep", "1"]))
    broken = tmp_path / "broken"
    broken.mkdir()
    text = "import sys\nif any('telemetry.sampler' in word for word in sys.orig_argv): raise SystemExit(3)\n"
    (broken / "sitecustomize.py").write_text(text)
    assert run_task(plan, JOB, PYTHONPATH=str(broken)).returncode == 0
    assert read_attempts(plan).unmeasured == 1
    told = hpcrl("status", plan)
    assert "attempts whose telemetry did not run: 1:" in told.err, told
    shown = hpcrl("collect", plan, "-o", tmp_path / "d")
    assert "Telemetry did not run in 1 attempt: their CPU and memory are missing" in shown.out
    (row,) = json.loads(package.load(tmp_path / "d").to_json(orient="records"))
    assert "telemetry did not run: the sampler ended with exit code 1" in row["notes"]
    assert row["outcome"] == "completed"


def test_plans_with_different_code_differ(project: Path, tmp_path: Path, hpcrl: Callable[..., Shown]) -> None:
    file = study(project, copy_workdir=True)
    assert hpcrl("plan", "--study", file, "-o", tmp_path / "a").code == 0
    (project / "helper.py").write_text("VALUE = 2\n")
    assert hpcrl("plan", "--study", file, "-o", tmp_path / "b").code == 0
    shown = hpcrl("plan", "diff", tmp_path / "a", tmp_path / "b")
    assert "- workdir-" in shown.out
    assert "+ workdir-" in shown.out
    again = hpcrl("plan", "--study", file, "-o", tmp_path / "a")
    assert "The commands' code differs from generation 1: completed cells keep their measurements" in again.out


def test_links_that_a_copy_lacks_are_named(project: Path, tmp_path: Path) -> None:
    (project / "data").symlink_to("/etc")
    (project / "gone").symlink_to(project / "nowhere")
    os.mkfifo(project / "pipe")
    plan = planned(tmp_path / "plan", str(study(project, copy_workdir=True)))
    (note,) = read_plan(plan).totals["notes"]
    assert note.endswith("or to nothing: data, gone, pipe")


@pytest.mark.parametrize("swapped", ["cells", "cells/{cell}", "{workdir}"])
def test_a_link_in_place_of_a_directory_of_the_plan(project: Path, tmp_path: Path, swapped: str) -> None:
    plan = planned(tmp_path / "plan", str(study(project, copy_workdir=True)))
    (cell,) = cells_of(plan)
    place = plan / swapped.format(cell=cell["id"], workdir=read_plan(plan).workload["workdir"])
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(project, elsewhere)
    before = sorted(elsewhere.rglob("*"))
    place.parent.mkdir(exist_ok=True)
    if place.is_dir():
        place.rename(tmp_path / "away")
    place.symlink_to(elsewhere)
    done = run_task(plan, JOB)
    assert done.returncode == 1
    assert f"{place}: is a symbolic link" in only_record(plan).footer["reason"]
    assert sorted(elsewhere.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
@pytest.mark.parametrize("foreign", ["cells", "cells/{cell}", "{workdir}"])
def test_a_directory_of_another_user_in_the_plan(project: Path, tmp_path: Path, foreign: str) -> None:
    plan = planned(tmp_path / "plan", str(study(project, copy_workdir=True)))
    (cell,) = cells_of(plan)
    place = plan / foreign.format(cell=cell["id"], workdir=read_plan(plan).workload["workdir"])
    place.mkdir(parents=True, exist_ok=True)
    os.chown(place, 65534, 65534)
    assert run_task(plan, JOB).returncode == 1
    assert f"{place}: belongs to user 65534, not to you or the plan's owner" in only_record(plan).footer["reason"]
    os.chown(plan, 65534, 65534)  # now it is the plan's owner
    assert run_task(plan, JOB).returncode == 0
