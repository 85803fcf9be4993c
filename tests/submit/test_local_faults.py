"""The local executor where something goes wrong or two things go on at once, for real."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpcrl.environments.build import MARKER
from hpcrl.formats.plan import read_plan
from hpcrl.formats.queues import FOLDER as QUEUES
from tests.builders import cells_of, command_study, planned_script, write_yaml
from tests.conftest import Shown
from tests.submit.test_local import kill_queue, ready, states, until

Call = Callable[..., Shown]
Ready = Callable[[dict[str, Any]], Path]

__all__ = ["ready"]
pytestmark = pytest.mark.slow


def gated(place: Path) -> list[str]:
    """Return a command that writes down its cell and waits until ``go`` is there."""
    return ["sh", "-c", f"echo {{cell}} >> {place}/ran; while [ ! -e {place}/go ]; do sleep 0.1; done"]


def ran(place: Path) -> list[str]:
    path = place / "ran"
    return path.read_text().split() if path.exists() else []


def queue_of(plan: Path) -> psutil.Process:
    """Return the process of the local queue."""
    (found,) = (
        process
        for process in psutil.process_iter(["cmdline"])
        if "submitit.core._submit" in " ".join(process.info["cmdline"] or ())
        and str(plan) in " ".join(process.info["cmdline"])
    )
    return found


def test_a_second_submit_waits_for_the_environments_of_the_first(hpcrl: Call, ready: Ready, tmp_path: Path) -> None:
    plan = ready(command_study(["true"], chain="staged", seeds=2))
    (environment,) = read_plan(plan).environments
    built = tmp_path / "environments" / environment.key
    kept = built.rename(tmp_path / "kept")
    script = next((plan / "scripts").glob("*environments*"))
    text = f"#!/bin/bash\nwhile [ ! -e {tmp_path}/go ]; do sleep 0.1; done\nsleep 1\ncp -r {kept} {built}\n"
    planned_script(plan, script, text)
    first, second = (cell["id"] for cell in cells_of(plan))
    assert hpcrl("submit", plan, "--cell", first).code == 0
    shown = hpcrl("submit", plan, "--cell", second)
    assert shown.code == 0, shown
    time.sleep(2)
    assert states(hpcrl, plan) == {"PENDING": 2}
    (tmp_path / "go").touch()
    until(lambda: (plan / "report/report.html").exists() and states(hpcrl, plan) == {"COMPLETED": 2})
    import hpcrl as package

    assert set(package.load(plan / "dataset")["cell"]) == {first, second}
    assert (built / MARKER).exists()


def test_the_cells_of_a_second_submit_come_into_the_dataset(hpcrl: Call, ready: Ready, tmp_path: Path) -> None:
    plan = ready(command_study(gated(tmp_path), chain="staged", seeds=2, max_parallel=2))
    first, second = (cell["id"] for cell in cells_of(plan))
    assert hpcrl("submit", plan, "--cell", first).code == 0
    until(lambda: len(ran(tmp_path)) == 1)
    assert hpcrl("submit", plan, "--cell", second).code == 0
    (tmp_path / "go").touch()
    until(lambda: (plan / "report/report.html").exists() and states(hpcrl, plan) == {"COMPLETED": 2})
    import hpcrl as package

    assert set(package.load(plan / "dataset")["cell"]) == {first, second}


def test_a_ledger_lost_with_its_submissions_starts_no_living_cell_again(
    hpcrl: Call, ready: Ready, tmp_path: Path
) -> None:
    plan = ready(command_study(gated(tmp_path), seeds=2, max_parallel=1))
    hpcrl("submit", plan)
    until(lambda: len(ran(tmp_path)) == 1)
    kill_queue(plan)
    (plan / "ledger.sqlite").unlink()
    shutil.rmtree(plan / "submissions")
    shown = hpcrl("submit", plan)
    assert "1 cell submitted in 1 job; 1 was already submitted." in shown.out, shown
    time.sleep(2)
    assert len(ran(tmp_path)) == 1
    (tmp_path / "go").touch()
    until(lambda: states(hpcrl, plan) == {"COMPLETED": 2})
    assert sorted(ran(tmp_path)) == sorted(cell["id"] for cell in cells_of(plan))


def test_a_lost_ledger_does_not_wait_for_the_cells_that_run(hpcrl: Call, ready: Ready, tmp_path: Path) -> None:
    plan = ready(command_study(gated(tmp_path), seeds=1))
    hpcrl("submit", plan)
    until(lambda: len(ran(tmp_path)) == 1)
    (plan / "ledger.sqlite").unlink()
    shown = subprocess.run(
        [sys.executable, "-m", "hpcrl", "submit", str(plan)], capture_output=True, text=True, check=True, timeout=60
    )
    assert "1 was already submitted" in shown.stdout
    (tmp_path / "go").touch()
    until(lambda: states(hpcrl, plan) == {"COMPLETED": 1})


@pytest.mark.parametrize("ledger", ["kept", "lost"])
def test_a_copy_cancels_nothing_of_the_original(hpcrl: Call, ready: Ready, tmp_path: Path, ledger: str) -> None:
    plan = ready(command_study(gated(tmp_path), seeds=1))
    hpcrl("submit", plan)
    until(lambda: len(ran(tmp_path)) == 1)
    copy = tmp_path / "copy"
    shutil.copytree(plan, copy)
    if ledger == "lost":
        (copy / "ledger.sqlite").unlink()
    shown = hpcrl("cancel", copy)
    assert shown.code == 1
    assert ("cancel there" if ledger == "kept" else "`hpcrl submit` rebuilds it") in shown.err
    (tmp_path / "go").touch()
    until(lambda: states(hpcrl, plan) == {"COMPLETED": 1})


def test_a_stopped_queue_is_told(hpcrl: Call, ready: Ready, tmp_path: Path) -> None:
    plan = ready(command_study(gated(tmp_path), seeds=2, max_parallel=1))
    hpcrl("submit", plan)
    until(lambda: len(ran(tmp_path)) == 1)
    queue = queue_of(plan)
    queue.send_signal(signal.SIGSTOP)
    try:
        shown = hpcrl("status", plan)
        assert f"the local queue (process {queue.pid}) is stopped" in shown.err, shown
        assert f"kill -CONT {queue.pid}" in shown.err
        assert hpcrl("cancel", plan).code == 0
        assert states(hpcrl, plan) == {"RUNNING": 1, "PENDING": 1}
    finally:
        queue.send_signal(signal.SIGCONT)
    until(lambda: states(hpcrl, plan) == {"CANCELLED": 2})
    assert len(ran(tmp_path)) == 1


def test_a_queue_that_dies_says_why(hpcrl: Call, ready: Ready, tmp_path: Path) -> None:
    plan = ready(command_study(gated(tmp_path), seeds=2, max_parallel=1))
    hpcrl("submit", plan)
    until(lambda: len(ran(tmp_path)) == 1)
    for path in (plan / "submitit").glob("*_0_log.err"):
        with path.open("a") as log:
            log.write("OSError: the last words\n")
    kill_queue(plan)
    (tmp_path / "go").touch()
    until(lambda: states(hpcrl, plan) == {"LOST": 1, "COMPLETED": 1})
    assert "the local queue has ended without it: OSError: the last words" in hpcrl("status", plan).err


def test_whatever_stands_where_queues_once_locked(hpcrl: Call, ready: Ready, tmp_path: Path) -> None:
    plan = ready(command_study(["true"], seeds=2))
    (plan / QUEUES / "turn").mkdir(parents=True)
    assert hpcrl("submit", plan, "--wait").code == 0
    assert states(hpcrl, plan) == {"COMPLETED": 2}


@pytest.mark.parametrize("name", ["scripts/mine-numpy-cpu-1.sbatch", "worker.zip"])
@pytest.mark.parametrize("fifo", [False, True])
def test_what_every_cell_needs_is_missing(hpcrl: Call, ready: Ready, name: str, fifo: bool) -> None:
    plan = ready(command_study(["true"]))
    (plan / name).unlink()
    if fifo:
        os.mkfifo(plan / name)
    shown = hpcrl("submit", plan)
    assert shown.code == 2
    what = "is not a regular file" if fifo else "is missing"
    assert f"{plan / name}: {what}: run `hpcrl plan` into this directory again to restore it" in shown.err
    assert states(hpcrl, plan) == {"NOT SUBMITTED": 1}


@pytest.mark.parametrize("name", ["scripts/mine-numpy-cpu-1.sbatch", "worker.zip"])
def test_what_every_cell_needs_was_edited(hpcrl: Call, ready: Ready, tmp_path: Path, name: str) -> None:
    study = command_study(["true"])
    plan = ready(study)
    with (plan / name).open("a") as file:
        file.write("#")
    shown = hpcrl("submit", plan)
    assert shown.code == 2
    assert (
        f"{plan / name}: was edited after the plan was made: change the template, the profile or the study" in shown.err
    )
    assert states(hpcrl, plan) == {"NOT SUBMITTED": 1}
    assert hpcrl("plan", "--study", write_yaml(tmp_path / "mine.yaml", study), "-o", plan).code == 0
    assert hpcrl("submit", plan, "--wait").code == 0
    assert states(hpcrl, plan) == {"COMPLETED": 1}


@pytest.mark.parametrize("name", ["logs", "records", "attempts", "submissions", "queues", "submitit"])
def test_a_file_where_a_directory_must_be(hpcrl: Call, ready: Ready, name: str) -> None:
    plan = ready(command_study(["true"]))
    with suppress(FileNotFoundError):
        (plan / name).rmdir()
    (plan / name).touch()
    shown = hpcrl("submit", plan)
    assert shown.code == 2
    assert f"{plan / name}: is not a directory: move it away" in shown.err


def test_records_that_are_gone_are_told_by_submit(hpcrl: Call, ready: Ready) -> None:
    plan = ready(command_study(["true"]))
    assert hpcrl("submit", plan, "--wait").code == 0
    shutil.rmtree(plan / "records")
    assert f"{plan / 'records'}: is gone" in hpcrl("submit", plan).err


def test_a_cell_that_never_began_has_no_attempts_to_miss(hpcrl: Call, ready: Ready) -> None:
    plan = ready(command_study(["true"]))
    script = next((plan / "scripts").glob("*cpu-1.sbatch"))
    planned_script(plan, script, "#!/bin/bash\necho no such module >&2\nexit 3\n")
    assert hpcrl("submit", plan, "--wait").code == 1
    shown = hpcrl("status", plan)
    assert "is gone" not in shown.err
    assert "no such module" in shown.err


def test_a_command_over_its_time_limit_is_a_timeout_and_leaves_nothing(
    hpcrl: Call, ready: Ready, tmp_path: Path
) -> None:
    code = f"import os, subprocess; child = subprocess.Popen(['sleep', '600']); open({str(tmp_path / 'pids')!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}'); child.wait()"
    study = command_study([sys.executable, "-c", code], retry={"timeout": {"time": "x2", "at_most": 1}})
    plan = ready(study | {"resources": {"memory": "1G", "time": "00:00:20"}})
    assert hpcrl("submit", plan, "--wait").code == 1
    assert states(hpcrl, plan) == {"TIMEOUT": 1}
    for pid in map(int, (tmp_path / "pids").read_text().split()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert hpcrl("submit", plan, "--retry").code == 0  # by its cause, with twice the time
    assert hpcrl("cancel", plan).code == 0


def test_slurm_is_not_asked_about_a_local_plan(hpcrl: Call, ready: Ready) -> None:
    shown = hpcrl("submit", ready(command_study(["true"])), "--test-only")
    assert shown.code == 2
    assert "--test-only needs Slurm" in shown.err


def test_a_log_is_followed_from_before_it_is_there_to_the_end(hpcrl: Call, ready: Ready, tmp_path: Path) -> None:
    waits = f"echo first; while [ ! -e {tmp_path}/go ]; do sleep 0.1; done; echo last"
    plan = ready(command_study(["sh", "-c", waits], seeds=2, max_parallel=1))
    second = cells_of(plan)[1]["id"]
    hpcrl("submit", plan)
    following = subprocess.Popen(
        [sys.executable, "-m", "hpcrl", "logs", str(plan), "--cell", second, "--follow"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert following.stderr is not None
    assert f"cell {second}: pending, no log yet" in following.stderr.readline()
    (tmp_path / "go").touch()
    out, err = following.communicate(timeout=120)
    assert following.returncode == 0
    assert "first\nlast\n" in out
    assert err.endswith(f"cell {second}: completed\n")


@pytest.mark.parametrize("damage", ["removed", "emptied", "damaged"])
def test_a_queue_outlives_its_ledger(hpcrl: Call, ready: Ready, tmp_path: Path, damage: str) -> None:
    code = (
        f"echo {{cell}} >> {tmp_path}/ran; while [ ! -e {tmp_path}/go-{{seed}} ]; do sleep 0.1; done; [ {{seed}} != 2 ]"
    )
    plan = ready(command_study(["sh", "-c", code], seeds=4, max_parallel=1))
    hpcrl("submit", plan)
    until(lambda: len(ran(tmp_path)) == 1)
    if damage == "removed":
        (plan / "ledger.sqlite").unlink()
    else:
        (plan / "ledger.sqlite").write_bytes(b"" if damage == "emptied" else b"rubbish" * 1000)
    queue = queue_of(plan)
    (tmp_path / "go-1").touch()
    until(lambda: len(ran(tmp_path)) == 2)
    shown = hpcrl("submit", plan, "--failed")
    assert "rebuilt" in shown.err, shown
    for seed in (2, 3, 4):
        (tmp_path / f"go-{seed}").touch()
    until(lambda: states(hpcrl, plan) == {"COMPLETED": 3, "FAILED": 1})
    until(lambda: not queue.is_running() or queue.status() == psutil.STATUS_ZOMBIE)
    assert sorted(ran(tmp_path)) == sorted(cell["id"] for cell in cells_of(plan))
    assert states(hpcrl, plan) == {"COMPLETED": 3, "FAILED": 1}
