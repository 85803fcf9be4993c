"""Plans through the local executor, for real: submit ends, the jobs go on."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpcrl.environments.build import MARKER
from hpcrl.formats.ledger import Ledger
from hpcrl.formats.plan import read_plan
from hpcrl.plan import machine
from hpcrl.schedulers.local import queue
from hpcrl.spec.cluster import Gpus
from tests.builders import cells_of, command_study, granted, planned, planned_script
from tests.conftest import Shown

Call = Callable[..., Shown]


@pytest.fixture
def ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], Path]:
    """Plan a study whose environment is the interpreter of the tests."""
    monkeypatch.setenv("HPCRL_ENVIRONMENTS", str(tmp_path / "environments"))

    def make(study: dict[str, Any]) -> Path:
        plan = planned(tmp_path / "plan", study)
        for environment in read_plan(plan).environments:
            path = tmp_path / "environments" / environment.key
            (path / "bin").mkdir(parents=True)
            (path / "bin/python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
            (path / "bin/python").chmod(0o755)
            (path / MARKER).write_text(json.dumps({"key": environment.key}))
        return plan

    return make


def until(condition: Callable[[], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to pass"
        time.sleep(0.1)


def states(hpcrl: Call, plan: Path) -> dict[str, int]:
    counts: dict[str, int] = json.loads(hpcrl("status", plan, "--json").out)["counts"]
    return counts


def test_staged_to_the_report_without_another_command(hpcrl: Call, ready: Callable[[dict[str, Any]], Path]) -> None:
    code = "import hpcrl\nfor step in range(5): hpcrl.log(episode_return=step, step=step)"
    plan = ready(command_study([sys.executable, "-c", code], chain="staged", seeds=3))
    shown = hpcrl("submit", plan, "--wait")
    assert shown.code == 0, shown
    assert "3 cells submitted in 4 jobs" in shown.out
    assert "3 completed" in shown.out
    assert (plan / "report" / "report.html").is_file()
    again = hpcrl("submit", plan)
    assert again.code == 0
    assert "0 cells submitted in 0 jobs; 3 were already submitted." in again.out


def gpu_study(gpus: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Study a command that says which GPUs it sees, for a machine with two GPUs of the imagination."""
    monkeypatch.setattr(machine, "_gpus", lambda: Gpus.model_validate({"type": "a100", "count": 2, "memory": "80G"}))
    code = "import os; print('sees', repr(os.environ['CUDA_VISIBLE_DEVICES']))"
    resources = {"memory": "1G", "time": "00:10:00", **({"gpus": gpus} if gpus else {})}
    return command_study([sys.executable, "-c", code], resources=resources, environment="torch")


@pytest.mark.slow
@pytest.mark.parametrize(("gpus", "expected"), [(2, "1,GPU-1"), (1, "1"), (0, "")])
def test_cells_have_the_gpus_that_the_user_left_visible(
    hpcrl: Call,
    ready: Callable[[dict[str, Any]], Path],
    monkeypatch: pytest.MonkeyPatch,
    nvml: Path,
    gpus: int,
    expected: str,
) -> None:
    plan = ready(gpu_study(gpus, monkeypatch))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,GPU-1")
    shown = hpcrl("submit", plan, "--wait")
    assert shown.code == 0, shown
    (log,) = (plan / "logs").glob("mine*.out")
    assert f"sees {expected!r}" in log.read_text()


def test_a_machine_that_is_too_small_says_so(
    hpcrl: Call, ready: Callable[[dict[str, Any]], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = ready(gpu_study(2, monkeypatch))
    shown = hpcrl("submit", plan, "--wait")
    assert shown.code == 1
    assert "1 x FAILED: hpcrl: this machine is too small for this job: cores asked for: 1, here: " in shown.err
    assert "; GPUs asked for: 2, here: 0. Make the plan on this machine, or submit it elsewhere" in shown.err


def test_failed_cells_are_honest_and_submitted_again(
    hpcrl: Call, ready: Callable[[dict[str, Any]], Path], tmp_path: Path
) -> None:
    code = f"import os, sys; sys.exit(0 if sys.argv[1] == '1' or os.path.exists({str(tmp_path / 'mended')!r}) else 4)"
    plan = ready(command_study([sys.executable, "-c", code, "{seed}"], seeds=2))
    (script,) = (plan / "scripts").glob("*cpu-1.sbatch")
    text = script.read_text().replace("index=", "echo preamble: no such command >&2\nindex=", 1)
    planned_script(plan, script, text)
    shown = hpcrl("submit", plan, "--wait")
    assert shown.code == 1
    assert "1 x FAILED" in shown.err
    assert "exit code 4" in shown.err
    assert "preamble" not in shown.err + hpcrl("status", plan).out
    cells = {each["config"]["seed"]: each for each in json.loads(hpcrl("status", plan, "--json").out)["cells"]}
    assert cells[2]["state"] == "FAILED"
    for words in ([plan, "--cell", cells[2]["id"][:6]], [cells[2]["id"], "--plan", plan]):
        assert f"hpcrl: cell {cells[2]['id']} begins (attempt 1)" in hpcrl("logs", *words).out
    assert "--cell is missing: give one of the cells" in hpcrl("logs", plan).err
    (tmp_path / "mended").touch()
    shown = hpcrl("submit", plan, "--wait")
    assert shown.code == 0
    assert "1 cell submitted in 1 job; 1 was already submitted." in shown.out
    assert states(hpcrl, plan) == {"COMPLETED": 2}
    hpcrl("collect", plan, "-o", tmp_path / "d")
    import hpcrl as package

    rows = package.load(tmp_path / "d")
    assert sorted(rows["outcome"]) == ["completed", "completed", "failed"]
    assert sorted(rows[rows["latest"]]["outcome"]) == ["completed", "completed"]


def test_the_process_may_end_and_what_runs_can_be_cancelled(
    hpcrl: Call, ready: Callable[[dict[str, Any]], Path], tmp_path: Path
) -> None:
    plan = ready(command_study(["sleep", "100"], seeds=3))
    submitting = subprocess.run(
        [sys.executable, "-m", "hpcrl", "submit", str(plan)], capture_output=True, text=True, check=False
    )
    assert submitting.returncode == 0, submitting.stderr
    until(lambda: states(hpcrl, plan).get("RUNNING", 0) > 0)
    assert hpcrl("cancel", plan).out == "3 cells cancelled.\n"
    until(lambda: states(hpcrl, plan) == {"CANCELLED": 3})
    hpcrl("collect", plan, "-o", tmp_path / "d")
    import hpcrl as package

    assert set(package.load(tmp_path / "d")["outcome"]) == {"cancelled"}


def test_a_cell_that_is_being_cancelled_runs_until_it_ends(
    hpcrl: Call, ready: Callable[[dict[str, Any]], Path], tmp_path: Path
) -> None:
    end = tmp_path / "end"
    code = f"trap '' TERM; touch {tmp_path}/runs; until [ -e {end} ]; do sleep 0.1; done"
    plan = ready(command_study(["sh", "-c", code], seeds=2, max_parallel=1, chain="staged"))
    hpcrl("submit", plan)
    until(lambda: (tmp_path / "runs").exists())
    words = [sys.executable, "-m", "hpcrl", "cancel", str(plan)]
    two = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    first, second = sorted((one.communicate()[0] for one in two), reverse=True)
    assert first == "3 had been cancelled before and have not ended.\n"
    assert second == "2 cells and 2 stages cancelled.\n"
    assert states(hpcrl, plan).get("RUNNING") == 1
    assert (
        "; collect pending (it is being cancelled); report pending (it is being cancelled)" in hpcrl("status", plan).out
    )
    assert collected(hpcrl, plan, tmp_path / "d").count("running") == 1
    assert "lost" not in collected(hpcrl, plan, tmp_path / "d")
    end.touch()
    until(lambda: states(hpcrl, plan) == {"CANCELLED": 2})
    assert collected(hpcrl, plan, tmp_path / "d") == ["cancelled", "cancelled"]


def kill_queue(plan: Path) -> None:
    """Kill the local queue and submitit's controller of it, and none of the cells."""
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or ())
        if "submitit" in words and str(plan) in words:
            process.kill()


def test_the_queue_is_killed_and_its_cells_run_on(
    hpcrl: Call, ready: Callable[[dict[str, Any]], Path], tmp_path: Path
) -> None:
    code = f"echo {{cell}} >> {tmp_path}/ran; while [ ! -e {tmp_path}/go ]; do sleep 0.1; done"
    plan = ready(command_study(["sh", "-c", code], seeds=3, max_parallel=1))
    assert hpcrl("submit", plan).code == 0
    until(lambda: (tmp_path / "ran").exists())
    kill_queue(plan)
    until(lambda: states(hpcrl, plan) == {"LOST": 2, "RUNNING": 1})
    assert "its local queue has ended, but the cell still runs" in hpcrl("status", plan, "--json").out
    assert collected(hpcrl, plan, tmp_path / "d") == ["lost", "lost", "running"]
    shown = hpcrl("submit", plan)
    assert "2 cells submitted" in shown.out, shown
    assert "cells of an ended local queue that still run: 1" in shown.err, shown
    time.sleep(2)  # max_parallel holds over both queues
    assert len((tmp_path / "ran").read_text().split()) == 1
    (tmp_path / "go").touch()
    until(lambda: states(hpcrl, plan) == {"COMPLETED": 3})
    ran = (tmp_path / "ran").read_text().split()
    assert len(ran) == len(set(ran)) == 3


def collected(hpcrl: Call, plan: Path, dataset: Path) -> list[str]:
    """Return the outcomes of a new dataset of a plan."""
    import hpcrl as package

    assert hpcrl("collect", plan, "-o", dataset).code == 0
    return sorted(package.load(dataset)["outcome"])


def cancelled_without_queue(hpcrl: Call, ready: Callable[[dict[str, Any]], Path], directory: Path) -> Path:
    """Return a plan of two cells whose queue was killed while the first one ran, and which was cancelled then."""
    plan = ready(command_study(["sh", "-c", f"echo {{cell}} >> {directory}/ran; sleep 60"], seeds=2, max_parallel=1))
    hpcrl("submit", plan)
    until(lambda: (directory / "ran").exists())
    kill_queue(plan)
    assert hpcrl("cancel", plan).code == 0
    return plan


def test_a_lost_cell_that_was_submitted_again_and_cancelled(
    hpcrl: Call, ready: Callable[[dict[str, Any]], Path], tmp_path: Path
) -> None:
    """The second queue runs the same attempt: that the first one has lost it no longer counts."""
    plan = cancelled_without_queue(hpcrl, ready, tmp_path)
    until(lambda: states(hpcrl, plan) == {"CANCELLED": 1, "LOST": 1})
    assert "1 cell submitted" in hpcrl("submit", plan, "--where", "seed=2").out
    until(lambda: len((tmp_path / "ran").read_text().split()) == 2)
    assert hpcrl("cancel", plan).out == "1 cell cancelled.\n"
    until(lambda: states(hpcrl, plan) == {"CANCELLED": 2})
    assert collected(hpcrl, plan, tmp_path / "d") == ["cancelled", "cancelled"]


def test_a_machine_that_goes_down_leaves_lost_cells(
    hpcrl: Call, ready: Callable[[dict[str, Any]], Path], tmp_path: Path
) -> None:
    """The queue, the cell and what measures it end without a word. (`status` waits a while for a sign of life.)"""
    plan = ready(command_study(["sh", "-c", f"echo {{cell}} >> {tmp_path}/ran; sleep 600"], seeds=2, max_parallel=1))
    hpcrl("submit", plan)
    until(lambda: (tmp_path / "ran").exists())
    kill_queue(plan)
    (command,) = [each for each in psutil.process_iter(["cmdline"]) if f"{tmp_path}/ran" in str(each.info["cmdline"])]
    ours = itertools.takewhile(lambda each: each.pid not in (1, os.getpid()), command.parents())
    here = [command, *ours]
    for process in here:
        process.suspend()  # so that none sees the end of another
    for process in here:
        process.kill()
    until(lambda: states(hpcrl, plan).get("RUNNING", 0) == 0)
    assert states(hpcrl, plan) == {"LOST": 1, "UNKNOWN": 1}
    assert collected(hpcrl, plan, tmp_path / "d") == ["lost", "running"]
    for record in (plan / "records").iterdir():
        os.utime(record, (time.time() - 90,) * 2)
    assert states(hpcrl, plan) == {"LOST": 2}
    assert collected(hpcrl, plan, tmp_path / "d") == ["lost", "lost"]


def test_a_cell_whose_queue_was_killed_is_cancelled(
    hpcrl: Call, ready: Callable[[dict[str, Any]], Path], tmp_path: Path
) -> None:
    plan = cancelled_without_queue(hpcrl, ready, tmp_path)
    until(lambda: states(hpcrl, plan).get("RUNNING", 0) == 0)
    assert len((tmp_path / "ran").read_text().split()) == 1


def test_the_ledger_is_lost_while_the_local_queue_works(
    hpcrl: Call, ready: Callable[[dict[str, Any]], Path], tmp_path: Path
) -> None:
    code = f"echo {{cell}} >> {tmp_path}/ran; sleep 1"
    plan = ready(command_study(["sh", "-c", code], seeds=3, max_parallel=1))
    hpcrl("submit", plan)
    until(lambda: (tmp_path / "ran").exists())
    (plan / "ledger.sqlite").unlink()
    until(lambda: hpcrl("submit", plan, "--wait").code == 0 and states(hpcrl, plan) == {"COMPLETED": 3})
    ran = (tmp_path / "ran").read_text().split()
    assert len(ran) == len(set(ran)) == 3


def test_no_more_at_once_than_there_are_cores(
    hpcrl: Call, ready: Callable[[dict[str, Any]], Path], tmp_path: Path
) -> None:
    code = "import os, sys, time; p = sys.argv[1]; open(p + '/' + sys.argv[2], 'w').close(); print(len(os.listdir(p))); import hpcrl; hpcrl.log(n=len(os.listdir(p))); time.sleep(0.7); os.remove(p + '/' + sys.argv[2])"
    running = tmp_path / "running"
    running.mkdir()
    plan = ready(command_study([sys.executable, "-c", code, str(running), "{seed}"], seeds=5))
    assert hpcrl("submit", plan, "--wait").code == 0
    hpcrl("collect", plan, "-o", tmp_path / "d")
    import hpcrl as package

    assert package.load(tmp_path / "d", "episodes")["value"].max() <= len(os.sched_getaffinity(0))


def test_two_queues_share_the_cores(hpcrl: Call, ready: Callable[[dict[str, Any]], Path], tmp_path: Path) -> None:
    code = f"taskset -cp $$ >> {tmp_path}/cores; while [ ! -e {tmp_path}/go ]; do sleep 0.1; done"
    plan = ready(command_study(["sh", "-c", code], seeds=4))
    free = len(os.sched_getaffinity(0))
    for cell in cells_of(plan):
        assert hpcrl("submit", plan, "--cell", cell["id"]).code == 0
    until(lambda: len((tmp_path / "cores").read_text().splitlines()) == free)
    time.sleep(2)
    lines = (tmp_path / "cores").read_text().splitlines()
    assert len({line.rpartition(":")[2] for line in lines}) == len(lines) == free
    (tmp_path / "go").touch()
    until(lambda: states(hpcrl, plan) == {"COMPLETED": 4})


def test_over_budget(hpcrl: Call, ready: Callable[[dict[str, Any]], Path]) -> None:
    plan = ready(command_study(["true"], seeds=12))
    shown = hpcrl("submit", plan, "--max-core-hours", 1)
    assert shown.code == 2
    assert "asks for up to 2 core-hours, over the 1 allowed" in shown.err
    assert Ledger(plan).submissions() == []


def test_no_slurm_for_a_slurm_plan(hpcrl: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(tmp_path / "p", command_study(["true"]), "sol")
    monkeypatch.setenv("PATH", str(tmp_path))
    shown = hpcrl("submit", plan)
    assert shown.code == 1
    assert "there is no sbatch here" in shown.err


def test_one_cell_by_hand(hpcrl: Call, ready: Callable[[dict[str, Any]], Path], tmp_path: Path) -> None:
    plan = ready(
        command_study(["sh", "-c", "echo {variant} > " + str(tmp_path / "said")], axes={"variant": ["a", "b"]})
    )
    wanted = next(each for each in cells_of(plan) if each["config"]["variant"] == "b")
    assert hpcrl("run", plan, "--cell", wanted["id"][:6]).code == 0
    assert (tmp_path / "said").read_text() == "b\n"
    assert len(list((plan / "records").iterdir())) == 1
    shutil.rmtree(tmp_path / "environments")
    shown = hpcrl("run", plan, "--cell", wanted["id"])
    assert shown.code == 1
    assert "the environment was not built: run hpcrl env create --plan" in shown.err


def test_the_best_of_a_search_runs_after_all_trials(hpcrl: Call, ready: Callable[[dict[str, Any]], Path]) -> None:
    search = {"trials": 4, "space": {"x": {"low": 0.0, "high": 1.0}}}
    code = "import hpcrl; hpcrl.log(loss={x}); print('{search}', {x}, file=open('ran', 'a'))"
    study = command_study(
        [sys.executable, "-c", code], axes={}, seeds=[1, 2], score="loss", better="lower", search=search
    )
    plan = ready(study)
    assert hpcrl("submit", plan, "--wait").code == 0
    ran = [line.split() for line in (plan.parent / "plan-study" / "ran").read_text().splitlines()]
    assert [role for role, _ in ran] == ["trial"] * 4 + ["best"] * 2
    assert {x for _, x in ran[4:]} == {min((x for _, x in ran[:4]), key=float)}


@pytest.mark.parametrize("has_own", [True, False])
def test_a_queue_depends_on_another_s_environments_only_without_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_own: bool
) -> None:
    plan = planned(tmp_path / "p", command_study(["true"], chain="staged"))
    ledger = Ledger(plan, create=True)
    made = [ledger.intend(granted(plan, "0", executor="local"))]
    if has_own:
        made.append(ledger.intend(granted(plan, "0", executor="local", job="mine-environments", array=False)))
    ledger.close()
    monkeypatch.setattr(queue._Draining, "_run_all", lambda self, some: ["COMPLETED" for _ in some])
    monkeypatch.setattr(queue._Draining, "_wait_for_others", lambda self, stage: ["FAILED"])
    given_up: list[str] = []
    monkeypatch.setattr(queue._Draining, "_give_up", lambda self, stages: given_up.extend(stages))
    queue._Draining(plan, [one.token for one in made], queue._Machine([0], []), "log").run()
    assert ("cells" in given_up) != has_own
