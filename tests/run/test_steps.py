"""Steps of a cell: prepare, the command, check."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from hpcrl.collect.reading import read_record
from hpcrl.formats.attempts import CHECK_BEGINS, read_attempts
from hpcrl.spec.study import Study
from tests.builders import cells_of, command_study, planned, run_task
from tests.run.test_cell import only_record

JOB = "mine-numpy-cpu-1"


def study(prepare: str = "", command: str = "pass", check: str = "", **changes: Any) -> dict[str, Any]:
    content = command_study([sys.executable, "-c", command], **changes)
    content["workload"] |= {"start_in": "cell"}
    for name, code in (("prepare", prepare), ("check", check)):
        if code:
            content["workload"][name] = [sys.executable, "-c", code, "{variant}"]
    return content


def outcome(plan: Path) -> tuple[str, str | None]:
    footer = only_record(plan).footer
    assert footer is not None
    return footer["outcome"], footer["reason"]


def test_each_step_sees_what_the_one_before_left(tmp_path: Path) -> None:
    plan = planned(
        tmp_path / "p",
        study(
            "import os, sys; open('made', 'w').write(sys.argv[1] + os.environ['HPCRL_CELL_VARIANT'])",
            "import time; open('out', 'w').write(open('made').read() * 2); time.sleep(0.3)",
            "import hpcrl, time; hpcrl.log(right=open('out').read() == 'aaaa'); time.sleep(0.4)",
        ),
    )
    done = run_task(plan, JOB)
    assert done.returncode == 0, done.stderr
    data = only_record(plan)
    assert data.values[0]["values"] == {"right": 1.0}
    assert data.phases is not None and data.footer is not None
    assert data.phases["prepare"][0] > 0 and data.phases["check"][0] > 0.4
    assert 0.3 < data.footer["training_time"] < data.footer["wall_time"] - data.phases["check"][0]
    assert data.footer["training_time"] == pytest.approx(data.phases["other"][0], abs=0.3)


@pytest.mark.parametrize(
    ("steps", "reason", "ran"),
    [
        (("import sys; sys.exit(3)", "open('ran', 'w')", "open('checked', 'w')"), "prepare: {python} ended with exit code 3", []),
        (("", "import sys; open('ran', 'w'); sys.exit(4)", "open('checked', 'w')"), "{python} ended with exit code 4", ["ran"]),
        (("", "open('ran', 'w')", "import sys; sys.exit(5)"), "check: {python} ended with exit code 5", ["ran"]),
        (("", "open('ran', 'w')", "import os; os.kill(os.getpid(), 9)"), "check: {python} was ended by SIGKILL", ["ran"]),
    ],
)  # fmt: skip
def test_a_step_that_fails_ends_the_cell(
    tmp_path: Path, steps: tuple[str, str, str], reason: str, ran: list[str]
) -> None:
    plan = planned(tmp_path / "p", study(*steps))
    assert run_task(plan, JOB).returncode == 1
    assert outcome(plan) == ("failed", reason.format(python=sys.executable))
    own = plan / "cells" / cells_of(plan)[0]["id"]
    assert sorted(path.name for path in own.glob("*")) == ran


def test_a_step_that_cannot_be_started(tmp_path: Path) -> None:
    content = study()
    content["workload"]["prepare"] = ["no-such-program"]
    plan = planned(tmp_path / "p", content)
    assert run_task(plan, JOB).returncode == 1
    assert outcome(plan) == ("failed", "prepare: no-such-program: cannot be started: No such file or directory")


def test_what_a_step_leaves_running_is_ended_with_it(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", study("import subprocess; subprocess.Popen(['sleep', '300'])", "open('ran', 'w')"))
    assert run_task(plan, JOB).returncode == 0
    (event,) = only_record(plan).events
    assert "1 process outlived the workload and had to be ended (sleep)" in event


@pytest.mark.parametrize("step", ["prepare", "check"])
def test_term_ends_a_step(tmp_path: Path, step: str) -> None:
    waits = f"open({str(tmp_path / 'begun')!r}, 'w'); import time; time.sleep(300)"
    ran = f"open({str(tmp_path / 'ran')!r}, 'w')"
    plan = planned(tmp_path / "p", study(**{step: waits}, command=ran))
    running = subprocess.Popen(
        [sys.executable, "-m", "hpcrl.run", str(plan), "--job", JOB, "--index", "0"],
        env=os.environ | {"PYTHONPATH": str(plan / "worker.zip")},
    )
    while not (tmp_path / "begun").exists():
        assert running.poll() is None
        time.sleep(0.02)
    running.send_signal(signal.SIGTERM)
    running.wait(60)
    assert outcome(plan) == ("preempted", f"{step}: ended by TERM")
    assert (tmp_path / "ran").exists() == (step == "check")


def test_the_warning_is_for_the_command_alone(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    content = study(f"open({str(begun)!r}, 'w'); import time; time.sleep(2)", "open('ran', 'w')")
    content["workload"]["on_warning"] = "USR2"
    plan = planned(tmp_path / "p", content)
    running = subprocess.Popen(
        [sys.executable, "-m", "hpcrl.run", str(plan), "--job", JOB, "--index", "0"],
        env=os.environ | {"PYTHONPATH": str(plan / "worker.zip")},
    )
    while not begun.exists():
        assert running.poll() is None
        time.sleep(0.02)
    running.send_signal(signal.SIGUSR2)
    running.wait(60)
    assert outcome(plan)[0] == "timeout"  # and not "failed": the step ran to its end, and the command was not started
    assert not list((plan / "cells").glob("*/ran"))


@pytest.mark.parametrize(("fails", "ran"), [("", "11cp"), ("p", "p"), ("1", "1p")])
def test_of_several_ranks_the_first_runs_the_steps(tmp_path: Path, fails: str, ran: str) -> None:
    log = tmp_path / "log"
    log.touch()
    code = "import sys; open({0!r}, 'a').write({1!r}); sys.exit({1!r} == {2!r})"
    content = study(*(code.format(str(log), word, fails) for word in "p1c"), resources={"tasks": 2, "time": "00:10:00"})
    plan = planned(tmp_path / "p", content)
    job = cells_of(plan) and next(iter((plan / "scripts").glob("mine*.sbatch"))).stem
    done = run_task(plan, job, 0, "--ranks", "2")
    records = [read_record(path).footer for path in (plan / "records").iterdir()]
    assert (done.returncode == 0) == (not fails), (done.stderr, records)
    written = "".join(sorted(log.read_text()))
    assert written == ran if fails != "1" else set(written) == set(ran)  # one rank that fails ends the other
    outcomes = {each["outcome"] for each in records if each}
    assert outcomes == {"completed"} if not fails else "failed" in outcomes
    assert set(read_attempts(plan).byhand.values()) == {"failed" if fails else "completed"}


def test_steps_are_part_of_a_cells_id_where_they_are_given(tmp_path: Path) -> None:
    ids = [
        cells_of(planned(tmp_path / name, study(prepare)))[0]["id"]
        for name, prepare in (("a", ""), ("b", "pass"), ("c", "0"))
    ]
    assert len(set(ids)) == 3


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (["mpicc", "{varant}"], "workload.prepare.1: {varant} is not an axis; did you mean 'variant'"),
        ([], "at least 1"),
        (["x", "--token=ghp_0123456789abcdefghijABCDEFGHIJ012345"], "prepare: .*looks like a secret"),
    ],
)
def test_wrong_steps(step: list[str], message: str) -> None:
    content = command_study(["true"])
    content["workload"]["prepare"] = step
    with pytest.raises(ValidationError, match=message):
        Study.model_validate(content)


def test_the_log_says_where_the_check_begins(tmp_path: Path) -> None:
    plan = planned(tmp_path / "plan", study("", "print('all is well')", "print('it differs'); raise SystemExit(1)"))
    assert run_task(plan, JOB).stderr.splitlines().count(CHECK_BEGINS) == 1
