"""py-spy and memray, which are programs of the cell's environment."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcrl.collect.profiles import profiles_of
from hpcrl.errors import UsageError
from hpcrl.formats.finding import find_cell
from hpcrl.formats.plan import read_plan
from hpcrl.formats.profiles import check_profiler, read_functions
from tests.builders import cells_of, command_study, dqn_study, planned, run_cell, run_task, write_yaml
from tests.conftest import Shown
from tests.run.test_cell import only_record


@pytest.mark.parametrize("profiler", ["py-spy", "memray"])
def test_what_hpcrl_s_environments_lack_is_refused_with_the_way_to_add_it(
    tmp_path: Path, profiler: str, hpcrl: Callable[..., Shown]
) -> None:
    with pytest.raises(
        UsageError, match=f"profile: environment numpy has no {profiler}: name an environment of your own in the study"
    ):
        planned(tmp_path / "p", dqn_study(profile=profiler))
    mine = {"extends": "numpy", "name": "mine", "+packages": [f"{profiler}==0.4.3"]}
    write_yaml(tmp_path / "envs/mine.yaml", mine)
    planned(tmp_path / "q", dqn_study(profile=profiler, environment="mine"), path=tmp_path)


def test_an_existing_environment_is_looked_into_where_it_is_here(tmp_path: Path) -> None:
    venv = tmp_path / "my venv"
    (venv / "bin").mkdir(parents=True)
    study = dqn_study(profile="memray", environment={"path": str(venv)})
    with pytest.raises(UsageError, match=f"profile: environment {venv} has no memray: install it there"):
        planned(tmp_path / "p", study)
    (venv / "bin/memray").touch()
    told = "profile: the environment of the cells must have memray: it cannot be checked here"
    assert told not in read_plan(planned(tmp_path / "q", study)).totals["notes"]
    elsewhere = planned(tmp_path / "r", study | {"environment": {"path": "/no/such/venv"}})
    assert told in read_plan(elsewhere).totals["notes"]


def test_py_spy_is_not_tried_on_a_container_by_hand_either(tmp_path: Path) -> None:
    study = command_study(["python", "x.py"], environment={"container": "docker://debian:12"})
    plan = planned(tmp_path / "p", study)
    opened = read_plan(plan)
    cell, *_ = find_cell(plan, opened, cells_of(plan)[0]["id"])
    with pytest.raises(UsageError, match="--profile: py-spy cannot look into a container: use cprofile"):
        check_profiler("py-spy", opened, cell, None)
    check_profiler("cprofile", opened, cell, None)


@pytest.fixture(scope="module")
def with_profilers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with py-spy and memray, installed with the project's own installer."""
    place = tmp_path_factory.mktemp("venv") / "v"
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "-q", "--system-site-packages", "--python", sys.executable, place], check=True)
    packages = ["py-spy==0.4.3", "memray==1.20.0", "numpy", "psutil", "gymnasium"]
    subprocess.run([*uv, "pip", "install", "-q", "--python", place / "bin/python", *packages], check=True)
    return place


BUSY = """
import sys, time
kept = bytearray(30_000_000) if len(sys.argv) > 1 else None

def hot():
    return sum(i * i for i in range(100_000))

until = time.monotonic() + 1.5
while time.monotonic() < until:
    hot()
print("done", flush=True)
sys.exit(3)
"""


@pytest.mark.slow
@pytest.mark.parametrize("profiler", ["py-spy", "memray"])
def test_py_spy_and_memray_look_at_commands_of_the_user_s_environment(
    tmp_path: Path, with_profilers: Path, profiler: str
) -> None:
    (tmp_path / "busy.py").write_text(BUSY)
    command = ["python", str(tmp_path / "busy.py"), "x"]
    plan = planned(tmp_path / "p", command_study(command, profile=profiler, environment={"path": str(with_profilers)}))
    (job,) = [path.stem for path in (plan / "scripts").glob("mine-*-1.sbatch")]
    done = run_task(plan, job)
    assert "done" in done.stdout, done.stderr
    data = only_record(plan)
    assert data.footer is not None and data.footer["reason"] == "python ended with exit code 3"
    assert not [text for text in data.events if "outlived" in text]
    (found,) = profiles_of(plan)
    assert found.profile.note is None, found.profile.note
    if profiler == "py-spy":
        assert found.profile.unit == "samples" and "/busy.py:5)" in found.profile.stacks
        assert found.profile.total
    else:
        assert found.profile.unit == "B" and found.profile.total is not None
        assert 30e6 < found.profile.total < 60e6
        largest = max(read_functions(found.profile.functions), key=lambda each: each.own)
        assert largest.name.startswith("<module> (") and largest.own >= 30e6


@pytest.mark.slow
@pytest.mark.parametrize("profiler", ["py-spy", "memray"])
def test_py_spy_and_memray_look_at_built_in_training(tmp_path: Path, with_profilers: Path, profiler: str) -> None:
    study = dqn_study(profile=profiler, environment={"path": str(with_profilers)})
    study["workload"]["hyperparameters"]["total_steps"] = (
        20_000  # several seconds: on a busy machine py-spy begins late
    )
    plan = planned(tmp_path / "p", study)
    (cell,) = cells_of(plan)
    done = run_cell(plan, cell["id"], python=with_profilers / "bin/python")
    assert done.returncode == 0, done.stderr
    (found,) = profiles_of(plan)
    assert found.profile.note is None, found.profile.note
    inside = (
        "train (hpcrl/rl/train.py" if profiler == "py-spy" else "(hpcrl/rl/"
    )  # memray knows calls after its start only
    assert inside in found.profile.stacks


def test_a_profiler_that_is_missing_at_the_cell_is_a_note(tmp_path: Path) -> None:
    study = command_study([sys.executable, "-c", "print(1)"], environment="none")
    for profiler in ("py-spy", "memray"):
        plan = planned(tmp_path / profiler, study | {"profile": profiler})
        (job,) = [path.stem for path in (plan / "scripts").glob("mine-*-1.sbatch")]
        done = run_task(plan, job, PATH="/usr/bin:/bin")
        assert done.returncode == 0, done.stderr
        assert f"hpcrl: profile: {profiler} can" in done.stderr
        assert "it is not " in done.stderr and "add it there" in done.stderr
        assert done.stdout == "1\n"


LATE = """#!{python}
import signal, sys, threading

ended = threading.Event()
signal.signal(signal.SIGINT, lambda *_: ended.set())
print("Sampling process", flush=True)
ended.wait()
with open(sys.argv[sys.argv.index("--output") + 1], "w") as file:
    file.write("main (/x/busy.py:5) 7\\n")
"""


def test_py_spy_has_the_time_that_it_needs_to_write(tmp_path: Path) -> None:
    """A stand-in for one that still works when the command has ended: it writes when it is asked to end, and is no process that was left over."""
    within = tmp_path / "environment" / "bin"
    within.mkdir(parents=True)
    (within / "python").symlink_to(sys.executable)
    (within / "py-spy").write_text(LATE.format(python=sys.executable))
    (within / "py-spy").chmod(0o755)
    study = command_study(["true"], profile="py-spy", environment={"path": str(within.parent)})
    plan = planned(tmp_path / "p", study)
    (job,) = [path.stem for path in (plan / "scripts").glob("mine-*-1.sbatch")]
    run_task(plan, job)
    assert not [text for text in only_record(plan).events if "outlived" in text]
    (found,) = profiles_of(plan)
    assert (found.profile.note, found.profile.total) == (None, 7)
