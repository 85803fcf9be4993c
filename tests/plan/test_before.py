"""Plans that are extended: a new generation beside the one that stands, which stays whole."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcrl.errors import UsageError
from hpcrl.formats.plan import every_cell, find_job, read_cells, read_plan
from hpcrl.plan import make
from hpcrl.plan.before import Changes, read_before
from hpcrl.plan.directory import PlanFiles, write_plan
from hpcrl.plan.make import UserChoices, make_plan
from hpcrl.spec.library import Library
from tests.builders import command_study, write_yaml

Extend = Callable[..., PlanFiles]
STEM = "mine-numpy-cpu-1"


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return tmp_path / "plan"


@pytest.fixture
def extend(plan: Path) -> Extend:
    """Plan a study into the directory, whatever stands there; return what was planned."""

    def call(cluster: str = "sol", write: bool = True, **changes: Any) -> PlanFiles:
        study = write_yaml(plan.parent / "study.yaml", command_study(["true"], **changes))
        files = make_plan(Library(), cluster, str(study), UserChoices(account="lab"), read_before(plan))
        if write:
            write_plan(files, plan)
        return files

    return call


def content(directory: Path) -> dict[str, bytes]:
    """Return all files of the plan: no leases, and none of the leftovers of killed runs, which are hidden."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file() and not path.name.startswith("."))
    paths = [path for path in paths if path.parent.name != "lease"]
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def test_more_seeds_are_a_new_generation(plan: Path, extend: Extend) -> None:
    extend(seeds=2)
    before = content(plan)
    files = extend(seeds=3)
    assert files.changes == Changes(1, 2, 0, [])
    assert files.changes.in_words(2) == ["generation 2: 1 cell new, 2 as before, 0 no longer in the study"]
    after = content(plan)
    new = {"cells-2.jsonl", "plan-1.json", f"scripts/{STEM}-g2.sbatch"}
    assert set(after) - set(before) == new
    assert {name for name in before if after[name] != before[name]} == {"plan.json"}
    assert after["plan-1.json"] == before["plan.json"]
    now = read_plan(plan)
    assert (now.generation, now.cells_file, now.worker, now.id) == (
        2,
        "cells-2.jsonl",
        "worker.zip",
        read_plan(plan, 1).id,
    )
    assert [job.name for job in now.jobs] == [f"{STEM}-g2", "mine-feed", "mine-notify"]
    assert f"--job {STEM}-g2 " in after[f"scripts/{STEM}-g2.sbatch"].decode()
    assert [cell.config["seed"] for cell in read_cells(plan)] == [1, 2, 3]
    assert [cell.config["seed"] for cell in read_cells(plan, now.jobs[0])] == [1, 2, 3]


def test_another_search_of_the_same_name_is_refused(plan: Path, extend: Extend) -> None:
    search: dict[str, Any] = {"trials": 2, "space": {"x": [1, 2]}}
    workload = {"command": ["true", "{x}"]}
    extend(search=search, workload=workload, axes={})
    assert extend(search={**search, "trials": 3}, workload=workload, axes={}).plan.generation == 2
    before = content(plan)
    for change in ({"space": {"x": [1, 3]}}, {"sampler": "random"}, {"seed": 7}, {"directions": {"loss": "minimize"}}):
        with pytest.raises(UsageError, match=r"contains another search of study mine, .* give the study another name"):
            extend(search={**search, **change}, workload=workload, axes={})
    with pytest.raises(UsageError, match="contains another search of study mine"):
        extend(workload=workload, axes={"x": [1, 2]})
    assert content(plan) == before


def test_pending_jobs_of_an_older_generation_go_on_with_theirs(
    plan: Path, extend: Extend, monkeypatch: pytest.MonkeyPatch
) -> None:
    extend(seeds=2)
    monkeypatch.setattr(make, "worker_zip", lambda: b"another")
    extend(seeds=3)
    extend(seeds=4)
    for generation, name, cells, worker in [
        (1, STEM, [1, 2], "worker.zip"),
        (2, f"{STEM}-g2", [1, 2, 3], "worker-2.zip"),
        (3, f"{STEM}-g3", [1, 2, 3, 4], "worker-2.zip"),
    ]:
        of, job = find_job(plan, name)
        assert (of.generation, of.worker) == (generation, worker)
        assert [cell.config["seed"] for cell in read_cells(plan, job)] == cells
        assert f'PYTHONPATH="$PWD/{worker}"' in (plan / job.script).read_text()
    with pytest.raises(UsageError, match=f"no job '{STEM}-g4'; did you mean '{STEM}-g3'"):
        find_job(plan, f"{STEM}-g4")


def test_jobs_that_do_not_change_keep_name_and_script(plan: Path, extend: Extend) -> None:
    extend(axes={"cpus": [1, 2]}, seeds=2)
    extend(axes={"cpus": [1, 2, 4]}, seeds=2)
    assert [job.name for job in read_plan(plan).cell_jobs()] == [STEM, "mine-numpy-cpu-2", "mine-numpy-cpu-3"]
    # The first job goes, so the numbers move up. No name is used for other cells than before.
    extend(axes={"cpus": [2, 4]}, seeds=2)
    assert [job.name for job in read_plan(plan).cell_jobs()] == [f"{STEM}-g3", "mine-numpy-cpu-2-g3"]
    extend(axes={"cpus": [1, 2, 4]}, seeds=2)
    assert [job.name for job in read_plan(plan).cell_jobs()] == [
        f"{STEM}-g4",
        "mine-numpy-cpu-2-g4",
        "mine-numpy-cpu-3-g4",
    ]


def test_the_same_inputs_are_the_same_plan(plan: Path, extend: Extend) -> None:
    extend(seeds=2)
    for seeds in (2, 3):
        extend(seeds=seeds)
        before = content(plan)
        files = extend(seeds=seeds, write=False)
        assert write_plan(files, plan) is False
        assert files.changes is None
        assert content(plan) == before


def test_a_file_that_is_gone_is_written_again(plan: Path, extend: Extend) -> None:
    extend(seeds=2)
    whole = content(plan)
    for name in (f"scripts/{STEM}.sbatch", "worker.zip"):
        (plan / name).unlink()
    extend(seeds=2)
    assert content(plan) == whole


def test_a_raised_limit_changes_no_cell(plan: Path, extend: Extend) -> None:
    extend(seeds=2, resources={"time": "00:10:00"})
    files = extend(seeds=2, resources={"time": "01:00:00"})
    assert files.changes == Changes(0, 2, 0, [])
    assert find_job(plan, STEM)[1].resources["time"] == 600
    assert find_job(plan, f"{STEM}-g2")[1].resources["time"] == 3600
    # Of a cell of both generations the newest is what it is.
    assert [cell.resources["time"] for _, cell in every_cell(plan, read_plan(plan))] == [3600, 3600]


def test_cells_that_the_study_has_no_more_stay_known(plan: Path, extend: Extend) -> None:
    extend(axes={"variant": ["a", "b"]})
    files = extend(axes={"variant": ["b", "c"]})
    assert files.changes == Changes(1, 1, 1, [])
    assert [cell.config["variant"] for _, cell in every_cell(plan, read_plan(plan))] == ["b", "c", "a"]
    # As many cells from the same script are still other cells, so the job is another one.
    assert [job.name for job in read_plan(plan).cell_jobs()] == [f"{STEM}-g2"]


def test_another_way_of_measuring_is_said(plan: Path, extend: Extend) -> None:
    extend(sample_interval=1.0)
    files = extend(sample_interval=0.5, precise_phases=True)
    assert files.changes
    assert files.changes.in_words(2)[1].startswith(
        "precise_phases and sample_interval differ from generation 1: completed cells keep their measurements"
    )


def test_only_the_same_study_on_the_same_cluster_extends_a_plan(plan: Path, extend: Extend) -> None:
    extend()
    for changes, other in [
        ({"cluster": "cirrus"}, "not of study mine on cirrus"),
        ({"name": "other"}, "not of study other on sol"),
    ]:
        with pytest.raises(
            UsageError, match=f"contains a plan of study mine on sol, {other}: choose another directory"
        ):
            extend(**changes)


def test_what_was_planned_for_another_state_of_the_directory_is_not_written(plan: Path, extend: Extend) -> None:
    extend(seeds=1)
    late = extend(seeds=2, write=False)
    extend(seeds=3)
    before = content(plan)
    with pytest.raises(UsageError, match="contains another plan"):
        write_plan(late, plan)
    assert content(plan) == before


_KILLED = """
import os, pickle, signal, sys
from pathlib import Path
from hpcrl.plan.directory import write_plan
replace, left = os.replace, int(sys.argv[3])
def count(*arguments):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    replace(*arguments)
os.replace = count
write_plan(pickle.loads(Path(sys.argv[1]).read_bytes()), Path(sys.argv[2]))
"""


def test_killed_at_any_step_the_old_plan_stays_whole(
    tmp_path: Path, plan: Path, extend: Extend, monkeypatch: pytest.MonkeyPatch
) -> None:
    extend(seeds=2, axes={"cpus": [1, 2]})
    old = content(plan)
    monkeypatch.setattr(make, "worker_zip", lambda: b"another")
    files = extend(seeds=3, axes={"cpus": [1, 2]}, write=False)
    (tmp_path / "files").write_bytes(pickle.dumps(files))
    done = tmp_path / "done"
    shutil.copytree(plan, done)
    write_plan(files, done)
    step = 0
    while True:
        copy = tmp_path / f"killed-{step}"
        shutil.copytree(plan, copy)
        ended = subprocess.run(
            [sys.executable, "-c", _KILLED, str(tmp_path / "files"), str(copy), str(step)], check=False, env=os.environ
        ).returncode
        found = content(copy)
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
        assert {name: found[name] for name in old} == old
        assert [cell.config["seed"] for cell in read_cells(copy, find_job(copy, STEM)[1])] == [1, 2]
        # Running it again completes it.
        assert write_plan(files, copy) is True
        assert content(copy) == content(done)
        step += 1
    assert found == content(done)
    # Cells, worker, old manifest, manifest, and a script for each job.
    assert step == 4 + len(files.plan.cell_jobs())


def test_scripts_of_a_killed_run_are_taken_away(plan: Path, extend: Extend) -> None:
    extend(axes={"cpus": [1]})
    (plan / "scripts" / "mine-numpy-cpu-7-g2.sbatch").write_text("of a run that was killed")
    extend(axes={"cpus": [1]}, seeds=2)
    assert sorted(path.name for path in (plan / "scripts").glob("*-g2.sbatch")) == [f"{STEM}-g2.sbatch"]


def test_a_plan_without_its_cells_is_not_extended(plan: Path, extend: Extend) -> None:
    extend()
    (plan / "cells.jsonl").unlink()
    with pytest.raises(
        UsageError, match=r"cells\.jsonl: cannot be read \(No such file or directory\): plan into another"
    ):
        extend(seeds=2)


def test_a_cell_with_line_breaks_of_unicode_is_one_line(plan: Path, extend: Extend) -> None:
    extend(axes={"variant": ["a\u2028b\x85c"]})
    assert extend(axes={"variant": ["a\u2028b\x85c"]}, seeds=2).changes == Changes(1, 1, 0, [])
