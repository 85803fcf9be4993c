"""Profilers that look at some steps of a training only, that a signal cuts short, or that write for long."""

from __future__ import annotations

import pstats
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import hpcrl as package
from hpcrl.collect.profiles import profiles_of
from hpcrl.run.profiling import PHASE, Profiling
from hpcrl.telemetry.phases import PhaseClock
from tests.builders import cells_of, command_study, dqn_study, planned, run_task
from tests.collect.gathering import gathered
from tests.run.test_cell import JOB, only_record
from tests.run.test_profiling import Failing


def test_a_profiler_may_look_at_some_steps_only(tmp_path: Path) -> None:
    """The training is the same, and the profile has the steps between the two marks, cut where no interval ends."""
    axes = {
        "framework": ["numpy"],
        "profile": ["none", {"profile": "cprofile", "profile_from": 137, "profile_steps": 211}],
    }
    plan = planned(tmp_path / "p", dqn_study(axes=axes))
    assert [cell["config"].get("profile_steps") for cell in cells_of(plan)] == [None, 211]
    for index in range(2):
        done = run_task(plan, JOB, index)
        assert done.returncode == 0, done.stderr
    gathered(tmp_path / "d", plan)
    cells = package.load(tmp_path / "d")
    assert cells["final_score"].nunique() == 1 and cells["steps"].nunique() == 1
    (file,) = (plan / "profiles").glob("*.pstats")
    stats = pstats.Stats(str(file)).stats  # type: ignore[attr-defined]
    steps = [
        calls for (path, _, name), (_, calls, *_) in stats.items() if name == "step" and path.endswith("cartpole.py")
    ]
    assert steps == [211]


def test_a_profiler_whose_steps_never_come_says_so(tmp_path: Path) -> None:
    profiling = Profiling("cprofile", tmp_path, "c.a.n.r0.rec", 64, PhaseClock(), window=(50, 60))
    with profiling.training():
        assert profiling.marks() == (50, 60)
        profiling.look(49)
    assert profiling.profile is not None
    assert profiling.profile.note == "the training ended before step 50, at which the profiler begins"
    with profiling.training():
        profiling.look(60)
    assert profiling.profile.note == "the training passed the steps 50 to 60 at once, and the profiler saw none of them"


def test_a_signal_leaves_no_time_for_a_profile(tmp_path: Path) -> None:
    class Slow(Failing):
        def stop(self) -> None:
            raise AssertionError("it may take a minute")

    profiling = Profiling(
        "py-spy", tmp_path, "c.a.n.r0.rec", 64, PhaseClock(), make=lambda *_: Slow("nowhere"), hurried=lambda: True
    )
    with profiling.training():
        profiling.look(1)
    assert profiling.profile is not None
    assert profiling.profile.note == "no profile was written, because a signal ended the cell"


def test_py_spy_is_gone_at_once_after_a_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stubborn = tmp_path / "py-spy"
    stubborn.write_text("#!/bin/sh\ntrap '' INT\necho Sampling process\nsleep 60 & wait\nwait\n")
    stubborn.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: str(stubborn))
    begun = time.monotonic()
    profiling = Profiling("py-spy", tmp_path, "c.a.n.r0.rec", 64, PhaseClock(), hurried=lambda: True)
    with profiling.training():
        tool: Any = profiling._tool
    assert tool._process.poll() is not None
    assert time.monotonic() - begun < 30  # it would have had 60 s to write


def test_what_a_command_s_profiler_takes_to_write_is_no_training_time(tmp_path: Path) -> None:
    """memray and cProfile write in the command's own process, at its end."""
    program = tmp_path / "slow.py"
    program.write_text(
        "import marshal, time\nwrite = marshal.dumps\ndef dumps(*given):\n    time.sleep(3)\n    return write(*given)\nmarshal.dumps = dumps\n"
    )
    plan = planned(tmp_path / "p", command_study([sys.executable, str(program)], profile="cprofile"))
    done = run_task(plan, "mine-numpy-cpu-1")
    assert done.returncode == 0, done.stderr
    data = only_record(plan)
    assert data.footer is not None
    assert data.footer["training_time"] < 2.5
    assert profiles_of(plan)[0].profile.seconds > 3
    assert data.phases[PHASE][0] > 3
