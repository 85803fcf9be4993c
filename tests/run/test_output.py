"""Numbers from a command's standard output, on its way to the log."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest
from pydantic import ValidationError

import hpcrl as package
from hpcrl.collect.merge import collect
from hpcrl.run.output import LONGEST_LINE, Output
from hpcrl.slurm.client import Slurm
from hpcrl.spec.study import Study
from tests.builders import command_study, planned, run_task
from tests.run.test_cell import only_record

JOB = "mine-numpy-cpu-1"


def read(data: bytes, patterns: dict[str, str], *, pieces: int = 0) -> tuple[list[tuple[Any, ...]], bytes, list[str]]:
    """Send bytes through; return (name, step, value) of each value, what was passed on, and the notes."""
    source, pipe = os.pipe()
    notes: list[str] = []

    def write() -> None:
        rest = data
        while rest:
            rest = rest[os.write(pipe, rest[: pieces or None]) :]
        os.close(pipe)

    writer = threading.Thread(target=write)
    writer.start()
    with TemporaryFile(buffering=0) as target:
        output = Output(os.fdopen(source, "rb"), patterns, notes.append, target.fileno())
        found = []
        while writer.is_alive():
            found += output.values()
            writer.join(0.01)
        found += output.close()
        target.seek(0)
        passed = target.read()
    flat = [
        (name, each["step"], value) for each in found for name, value in each.items() if name not in ("time", "step")
    ]
    return flat, passed, notes


@pytest.mark.parametrize("pieces", [0, 1, 3, 7])
def test_each_match_of_a_line_is_a_value(pieces: int) -> None:
    text = b"start\nstep 3: loss=0.5\nloss=1e-3 loss=2\r\n10%\r20%\rloss=nan\nnot loss=x\nend loss=-4"
    found, passed, notes = read(
        text, {"loss": r"(?:step (?P<step>\d+): )?loss=(\S+)", "done": r"(\d+)%"}, pieces=pieces
    )
    assert passed == text
    assert notes == []
    assert str(found) == str(
        [
            ("loss", 3, 0.5),
            ("loss", None, 0.001),
            ("loss", None, 2.0),
            ("done", None, 10.0),
            ("done", None, 20.0),
            ("loss", None, float("nan")),
            ("loss", None, -4.0),
        ]
    )


def test_rubbish_is_passed_on_as_it_is() -> None:
    data = random.Random(1).randbytes(3_000_000) + b"\nx=1\n" + b"\0" * 100_000
    found, passed, _ = read(data, {"x": r"^x=(\d+)$"})
    assert passed == data
    assert ("x", None, 1.0) in found


def test_a_long_line_is_cut_for_matching_only() -> None:
    data = b"x=1" + b"." * LONGEST_LINE + b"x=2\n" + b"y" * 10_000_000 + b"x=3\nx=4\n"
    found, passed, notes = read(data, {"x": r"x=(\d+)"})
    assert passed == data
    assert found == [("x", None, 1.0), ("x", None, 4.0)]
    assert notes == [
        f"metrics.stdout: expected lines of at most {LONGEST_LINE} bytes, got a longer one: its rest is not read"
    ]


def test_many_lines_at_once() -> None:
    data = b"".join(b"iteration %d loss %d\n" % (number, number) for number in range(300_000))
    found, passed, notes = read(data, {"loss": r"iteration (?P<step>\d+) loss (\d+)"})
    assert passed == data
    assert found == [("loss", number, float(number)) for number in range(300_000)]
    assert notes == []


def test_a_pattern_that_never_ends_is_given_up_and_the_others_go_on() -> None:
    data = b"a" * 60 + b"!\nx=5\n"
    found, passed, notes = read(data, {"bad": r"(a+)+$".replace("(a+)+", "(?:a+)+(b)"), "x": r"x=(\d)"})
    assert passed == data
    assert found == [("x", None, 5.0)]
    assert len(notes) == 1 and notes[0].startswith("metrics.stdout.bad: the pattern needs more than 1 s")
    os.kill(os.getpid(), signal.SIGPROF)  # one that comes late does no harm


def test_a_target_that_takes_nothing_does_not_stop_the_program() -> None:
    source, pipe = os.pipe()
    notes: list[str] = []
    with Path("/dev/full").open("wb", buffering=0) as full:
        output = Output(os.fdopen(source, "rb"), {"x": r"x=(\d)"}, notes.append, full.fileno())
        with os.fdopen(pipe, "wb") as file:
            file.write(b"." * 1_000_000 + b"\nx=7\n")
        assert [each["x"] for each in output.close()] == [7.0]
    assert notes[0] == "the standard output could not be passed on: No space left on device"


def test_who_holds_the_pipe_open_is_not_waited_for() -> None:
    source, pipe = os.pipe()
    output = Output(os.fdopen(source, "rb"), {"x": r"x=(\d)"}, print, os.open("/dev/null", os.O_WRONLY))
    os.write(pipe, b"x=1\nx=2")
    assert [each["x"] for each in output.close()] == [1.0, 2.0]  # and the pipe is still open
    os.close(pipe)


def test_a_cell_gives_values_and_passes_its_output_on(tmp_path: Path) -> None:
    code = (
        "import sys, subprocess, time; subprocess.Popen(['sleep', '300']);"
        "[print('step', n, 'loss', n / 2, flush=True) for n in range(3)]; sys.stdout.buffer.write(bytes([255, 254]) + b' tail 9')"
    )
    study = command_study([sys.executable, "-c", code], score="tail")
    study["workload"]["metrics"] = {"stdout": {"loss": r"step (?P<step>\d+) loss ([\d.]+)", "tail": r"tail (\d+)"}}
    plan = planned(tmp_path / "p", study)
    log = tmp_path / "log"
    with log.open("wb") as file:
        done = subprocess.run(
            [sys.executable, "-m", "hpcrl.run", str(plan), "--job", JOB, "--index", "0", "--interval", "0.1"],
            env=os.environ | {"PYTHONPATH": str(plan / "worker.zip")},
            stdout=file,
            stderr=subprocess.PIPE,
            check=False,
            timeout=100,
        )
    assert done.returncode == 0, done.stderr
    assert log.read_bytes().endswith(b"step 0 loss 0.0\nstep 1 loss 0.5\nstep 2 loss 1.0\n\xff\xfe tail 9")
    values = only_record(plan).values
    assert [(each["step"], each["values"]) for each in values] == [
        (0, {"loss": 0.0}),
        (1, {"loss": 0.5}),
        (2, {"loss": 1.0}),
        (None, {"tail": 9.0}),
    ]
    collect([plan], tmp_path / "d", Slurm())
    (row,) = package.load(tmp_path / "d").to_dict("records")
    assert (row["outcome"], row["final_score"], row["steps"]) == ("completed", 9.0, 2)
    assert "1 process outlived the workload and had to be ended (sleep)" in row["notes"]


def test_a_signal_reaches_a_command_that_floods_its_output(tmp_path: Path) -> None:
    study = command_study([sys.executable, "-c", "while True: print('x=1')"])
    study["workload"]["metrics"] = {"stdout": {"x": r"y=(\d)"}}
    plan = planned(tmp_path / "p", study)
    command = [sys.executable, "-m", "hpcrl.run", str(plan), "--job", JOB, "--index", "0"]
    with Path("/dev/null").open("wb") as nowhere:
        running = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(plan / "worker.zip")}, stdout=nowhere)
        while not list((plan / "records").glob("*")):
            assert running.poll() is None
            time.sleep(0.05)
        running.terminate()
        try:
            running.wait(60)
        finally:
            running.kill()
    record = only_record(plan)
    assert record.footer is not None
    assert record.footer["outcome"] == "preempted"


def test_without_patterns_the_program_has_the_log_itself(tmp_path: Path) -> None:
    code = "import os, stat, hpcrl; hpcrl.log(pipe=stat.S_ISFIFO(os.fstat(1).st_mode), same=os.fstat(1).st_ino)"
    plan = planned(tmp_path / "p", command_study([sys.executable, "-c", code]))
    done = run_task(plan, JOB)
    assert done.returncode == 0
    first = only_record(plan).values[0]["values"]["same"]
    study = command_study([sys.executable, "-c", code])
    study["workload"]["metrics"] = {"stdout": {"x": r"y=(\d)"}}
    plan = planned(tmp_path / "q", study)
    assert run_task(plan, JOB).returncode == 0
    values = only_record(plan).values[0]["values"]
    assert values["pipe"] == 1 and values["same"] != first


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        ({"x": "("}, r"metrics.stdout.x: '\(' is not a regular expression: missing \)"),
        ({"x": r"\d+"}, r"metrics.stdout.x: expected one group \( \) around the number, got none"),
        ({"x": r"(\d)(\d)"}, "expected one group .* got 2"),
        ({"x": r"(?P<step>\d+)"}, "expected one group .* got none"),
        ({"step": r"(\d)"}, "'step' is not allowed as the name of a value"),
        ({}, "metrics.stdout: expected at least one NAME"),
        ({f"x{n}": r"(\d)" for n in range(51)}, "expected at most 50 patterns, got 51"),
    ],
)
def test_a_wrong_pattern_is_refused_at_plan_time(patterns: dict[str, str], message: str) -> None:
    study = command_study(["true"])
    study["workload"]["metrics"] = {"stdout": patterns}
    with pytest.raises(ValidationError, match=message):
        Study.model_validate(study)


def test_patterns_change_no_id(tmp_path: Path) -> None:
    study = command_study(["true"])
    before = planned(tmp_path / "a", study)
    study["workload"]["metrics"] = {"stdout": {"x": r"(\d{3})"}}
    after = planned(tmp_path / "b", study)
    assert (before / "cells.jsonl").read_text() == (after / "cells.jsonl").read_text()
