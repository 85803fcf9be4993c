"""Cells under a profiler, from the study to the report."""

from __future__ import annotations

import errno
import gzip
import json
import marshal
import os
import pstats
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcrl as package
from hpcrl.collect.profiles import profiles_of
from hpcrl.formats.profiles import Function, read_functions, read_stacks
from hpcrl.plan.reuse import completed_cells
from hpcrl.report.figures.updates import dispatched
from hpcrl.report.write import write_report
from hpcrl.rl.frameworks.numpy.core import Learner
from hpcrl.run.profilers.interface import Found
from hpcrl.run.profilers.python_program import under
from hpcrl.run.profiling import PHASE, Profiling
from hpcrl.telemetry.phases import PhaseClock
from tests.builders import (
    built_environment,
    cells_by_key,
    cells_of,
    command_study,
    dqn_study,
    planned,
    run_cell,
    run_task,
)
from tests.collect.gathering import gathered
from tests.conftest import Shown
from tests.run.test_cell import JOB, only_record

PROGRAM = """
import hpcrl, json, os, sys

def slow(n):
    return sum(i * i for i in range(n))

class Thing:
    pass

if __name__ == "__main__":
    import pickle
    assert type(pickle.loads(pickle.dumps(Thing()))) is Thing
    hpcrl.log(episode_return=float(slow(200_000) > 0), arguments=len(sys.argv))
    print(json.dumps({"argv": sys.argv, "first": sys.path[0], "file": __file__, "names": sorted(n for n in globals() if not n.startswith("__"))}))
    sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of one training with and without cProfile, two seeds, both run."""
    base = tmp_path_factory.mktemp("profiled")
    study = dqn_study(axes={"framework": ["numpy"], "profile": ["none", "cprofile"]}, seeds=2)
    plan = planned(base / "p", study)
    for index in range(4):
        done = run_task(plan, JOB, index)
        assert done.returncode == 0, done.stderr
    gathered(base / "d", plan)
    return base


def test_a_profiled_cell_is_another_cell_and_the_other_one_is_as_in_a_study_without(
    trained: Path, tmp_path: Path
) -> None:
    cells = cells_by_key(trained / "p", "profile")
    assert [each["config"].get("profile") for each in cells] == [None, None, "cprofile", "cprofile"]
    plain = cells_of(planned(tmp_path / "p", dqn_study(seeds=2)))
    assert [each["id"] for each in plain] == [each["id"] for each in cells[:2]]
    whole = cells_of(planned(tmp_path / "q", dqn_study(seeds=2, profile="cprofile")))
    assert [each["id"] for each in whole] == [each["id"] for each in cells[2:]]


def test_cprofile_sees_the_training_and_nothing_before_it(trained: Path) -> None:
    plan, cell = trained / "p", cells_by_key(trained / "p", "profile")[2]["id"]
    (found,) = profiles_of(plan, cell[:6])
    assert found.path is not None
    assert (found.profile.profiler, found.profile.size) == ("cprofile", found.path.stat().st_size)
    counted = pstats.Stats(str(found.path)).stats  # type: ignore[attr-defined]
    by_name: dict[str, int] = {}
    for (_, _, name), (_, calls, *_) in counted.items():
        by_name[name] = by_name.get(name, 0) + calls
    assert by_name["train"] == 1 and "make_training" not in by_name and "import_module" not in by_name
    functions = {each.name.partition(" (")[0]: each for each in read_functions(found.profile.functions)}
    train = functions["train"]
    assert (train.calls, train.total) == (1, pytest.approx(found.profile.total, rel=0.05))
    tree = read_stacks(found.profile.stacks)
    (outermost,) = [each for each in tree.callees.values() if each.value > 0.5 * tree.value]
    assert outermost.name.startswith("train (hpcrl/rl/train.py:")
    assert found.profile.total == pytest.approx(sum(own for _, _, own, *_ in counted.values()), rel=0.01)


def test_the_time_of_updates_under_cprofile_is_that_of_the_learner_s_call(trained: Path) -> None:
    cells, profiles = package.load(trained / "d"), package.load(trained / "d", "profiles")
    under_it = cells.loc[cells["profile"].notna(), ["plan", "cell", "attempt", "steps", "seed", "config"]]
    found = dispatched(under_it.assign(place="here"), profiles)
    place = Learner.update.__code__.co_firstlineno, "update"
    wanted = []
    for file in (trained / "p/profiles").glob("*.pstats"):
        counted = pstats.Stats(str(file)).stats  # type: ignore[attr-defined]
        ((_, calls, _, total, _),) = [
            numbers
            for (path, *rest), numbers in counted.items()
            if tuple(rest) == place and path.endswith("hpcrl/rl/frameworks/numpy/core.py")
        ]
        assert calls > 100
        wanted.append(total)
    assert len(wanted) == 2
    (steps,) = set(under_it["steps"])
    assert sorted(found["seconds"] * steps) == pytest.approx(sorted(wanted), rel=1e-4)


def test_a_profile_changes_nothing_that_is_learned_and_its_writing_is_a_phase(trained: Path) -> None:
    cells = package.load(trained / "d")
    assert list(cells["profile"].fillna("none")) == ["none", "none", "cprofile", "cprofile"] or set(
        cells["profile"].dropna()
    ) == {"cprofile"}
    for _, pair in cells.groupby("seed"):
        assert pair["final_score"].nunique() == 1
    phases = package.load(trained / "d", "phases")
    profiled = set(cells.loc[cells["profile"].notna(), "cell"])
    assert set(phases.loc[phases["phase"] == PHASE, "cell"]) == profiled
    profiles = package.load(trained / "d", "profiles")
    assert set(profiles["cell"]) == profiled
    assert (profiles["bytes"] > 1000).all() and (profiles["seconds"] > 0).all() and profiles["note"].isna().all()


def test_times_of_profiled_cells_are_compared_with_nothing(trained: Path, tmp_path: Path) -> None:
    runs = package.load(trained / "d", "runs")
    assert set(runs["cell"]) == {each["id"] for each in cells_by_key(trained / "p", "profile")[:2]}
    written = write_report(trained / "d", None, tmp_path / "r", ())
    assert [row[2] for row in written.rows] == ["2"] or ["2" in row for row in written.rows] == [True]
    table = (tmp_path / "r/cells.csv").read_text()
    assert "cprofile" not in table
    page = written.html.read_text()
    assert (
        "2 attempts ran under a profiler (cProfile). A profiler changes times, so these attempts are in no table, figure"
        in page
    )
    assert "cProfile itself: with it, the time after the first step is, relative to that without it, " in page
    assert "with NumPy eager, from 2 pairs." in page


def test_a_study_of_profiled_cells_only_has_a_report_that_says_so(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study(profile="cprofile"))
    assert run_task(plan, JOB).returncode == 0
    gathered(tmp_path / "d", plan)
    assert package.load(tmp_path / "d", "runs").empty
    written = write_report(tmp_path / "d", None, tmp_path / "r", ())
    assert "NumPy eager profile cprofile" in str(written.rows)
    page = written.html.read_text()
    assert "Every cell of this study ran under a profiler (cProfile): its times include the profiler" in page
    assert "The cost of cProfile itself was not measured" in page


def test_a_profile_by_hand_does_not_complete_the_cell_and_leaves_its_checkpoint(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", dqn_study())
    (cell,) = cells_of(plan)
    checkpoint = plan / "checkpoints" / f"{cell['id']}.npz"
    checkpoint.parent.mkdir()
    checkpoint.write_bytes(b"of the cell's own attempt")
    done = run_cell(plan, cell["id"], "--profile", "cprofile")
    assert done.returncode == 0, done.stderr
    assert checkpoint.read_bytes() == b"of the cell's own attempt"
    assert only_record(plan).header["profile"] == "cprofile"
    assert completed_cells([plan]) == {}
    gathered(tmp_path / "d", plan)
    assert completed_cells([tmp_path / "d"]) == {}
    checkpoint.unlink()
    assert run_task(plan, JOB).returncode == 0
    assert run_cell(plan, cell["id"], "--profile", "cprofile").returncode == 0
    gathered(tmp_path / "d", plan)
    rows = package.load(tmp_path / "d").sort_values("started")
    assert list(rows["profile"].notna()) == [True, False, True]
    assert list(rows["latest"]) == [False, True, False]  # the newest attempt is an extra one
    assert completed_cells([tmp_path / "d"]) == {cell["id"]: str(tmp_path / "d")}
    assert list(package.load(tmp_path / "d", "runs")["attempt"]) == [rows["attempt"].iloc[1]]
    page = write_report(tmp_path / "d", None, tmp_path / "r", ()).html.read_text()
    assert "with NumPy eager, from 1 pair." in page  # both extra attempts, beside the one without


@pytest.mark.parametrize("form", ["script", "module", "code"])
def test_a_command_of_python_is_profiled_and_notices_nothing(tmp_path: Path, form: str) -> None:
    place = tmp_path / "code"
    place.mkdir()
    (place / "program.py").write_text(PROGRAM)
    words = {
        "script": ["program.py"],
        "module": ["-m", "program"],
        "code": [
            "-c",
            "from program import *; hpcrl.log(episode_return=float(slow(200_000) > 0), arguments=len(sys.argv))",
        ],
    }[form]
    study = command_study([sys.executable, *words, "0"], profile="cprofile")
    study["workload"]["workdir"] = str(place)
    plan = planned(tmp_path / "p", study)
    done = run_task(plan, "mine-numpy-cpu-1")
    assert done.returncode == 0, done.stderr
    if form != "code":
        said = json.loads(done.stdout)
        plain = subprocess.run(
            [sys.executable, *words, "0"], cwd=place, capture_output=True, text=True, check=True,
            env=os.environ | {"PYTHONPATH": str(plan / "worker.zip")},
        )  # fmt: skip
        assert said == json.loads(plain.stdout)
    data = only_record(plan)
    assert data.values[0]["values"] == {"episode_return": 1.0, "arguments": 2.0}
    (found,) = profiles_of(plan)
    # Only the program's own: Python's libraries have generator expressions too.
    own = [each for each in read_functions(found.profile.functions) if "program.py:" in each.name]
    functions = {each.name.partition(" (")[0]: each for each in own}
    assert functions["slow"].calls == 1
    assert functions["<genexpr>"].calls == 200_001
    assert "slow" in found.profile.stacks
    assert found.profile.total is not None and functions["slow"].total < found.profile.total


def test_a_command_that_fails_has_its_exit_code_and_its_profile(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    study = command_study([sys.executable, "-u", str(tmp_path / "program.py"), "3"], profile="cprofile")
    plan = planned(tmp_path / "p", study)
    assert run_task(plan, "mine-numpy-cpu-1").returncode == 1
    data = only_record(plan)
    assert data.footer is not None
    assert data.footer["reason"] == f"{sys.executable} ended with exit code 3"
    assert profiles_of(plan)[0].profile.total


def test_a_command_that_leaves_no_profile_says_so_and_completes(tmp_path: Path) -> None:
    plan = planned(tmp_path / "p", command_study([sys.executable, "-c", "import os; os._exit(0)"], profile="cprofile"))
    done = run_task(plan, "mine-numpy-cpu-1")
    assert done.returncode == 0, done.stderr
    assert "hpcrl: profile: the command left no profile" in done.stderr
    gathered(tmp_path / "d", plan)
    assert "profile: the command left no profile" in package.load(tmp_path / "d")["notes"].iloc[0]
    assert list(package.load(tmp_path / "d", "profiles")["file"].isna()) == [True]


def test_options_of_the_interpreter_stay_its_own(tmp_path: Path) -> None:
    program = tmp_path / "x.py"
    program.write_text("import sys; print(sys.flags.optimize, sys.flags.isolated, sys.argv)")
    for options in (["-O"], ["-I", "-W", "ignore"], ["-OX", "dev"], []):
        scratch = tmp_path / f"scratch{len(options)}"
        scratch.mkdir(exist_ok=True)
        plain = [sys.executable, *options, str(program), "-c", "-m"]
        wrapped = under("cprofile", plain, scratch, scratch / "out")
        outs = [subprocess.run(each, capture_output=True, text=True, check=True).stdout for each in (plain, wrapped)]
        assert outs[0] == outs[1], options
        assert marshal.loads((scratch / "out").read_bytes())


def test_a_profile_that_is_too_large_is_not_kept_and_the_cell_completes(
    tmp_path: Path, hpcrl: Callable[..., Shown]
) -> None:
    program = tmp_path / "many.py"
    program.write_text("for n in range(16000):\n    exec(f'def f{n}(): pass\\nf{n}()')\n")
    plan = planned(
        tmp_path / "p", command_study([sys.executable, str(program)], profile="cprofile", profile_limit="1M")
    )
    done = run_task(plan, "mine-numpy-cpu-1")
    assert done.returncode == 0, done.stderr
    assert not (plan / "profiles").exists()
    gathered(tmp_path / "d", plan)
    (row,) = package.load(tmp_path / "d", "profiles").to_dict("records")
    assert row["bytes"] > 2**20
    assert row["file"] is None or row["file"] != row["file"]
    assert (
        row["note"].startswith("the file of ")
        and "was not kept, because `profile_limit` is 1 MiB: set it higher" in row["note"]
    )
    assert row["functions"]  # the summary is small and stays
    _, listed = hpcrl("profile", plan).out.splitlines()
    assert listed.endswith(row["note"])


class Failing:
    """A profiler that fails where it is told to."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def act(*arguments: Any) -> Any:
            if name == self._where:
                raise RuntimeError(f"no {name}\nmore")
            if name == "write" and self._where == "room":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if name == "write":
                (arguments[0] / "x.txt").write_text("x")
                return Found(arguments[0] / "x.txt", 1.0, [Function("f", 1.0, 1.0)])
            return None

        return act


@pytest.mark.parametrize("where", ["start", "look", "stop", "write", "made", "folder", "file", "room", "nothing"])
def test_a_profiler_that_fails_does_not_harm_the_training(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))

    def make(name: str, framework: str | None) -> Any:
        if where == "made":
            raise ImportError("not here")
        return Failing(where)

    if where == "folder":
        (tmp_path / "profiles").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
        (tmp_path / "elsewhere").mkdir()
    if where == "file":
        (tmp_path / "profiles").write_text("")
    profiling = Profiling("cprofile", tmp_path, "c.a.n.r0.rec", 64, PhaseClock(), make=make)
    with profiling.training():
        profiling.look(1)
        trained = np.ones(3).sum()
    assert trained == 3
    assert list((tmp_path / "tmp").iterdir()) == []
    assert profiling.profile is not None
    if where == "nothing":
        assert (profiling.profile.file, profiling.profile.note) == ("c.a.n.r0.txt", None)
        assert (tmp_path / "profiles/c.a.n.r0.txt").read_text() == "x"
        return
    expected = {
        "start": "cprofile cannot start: RuntimeError: no start", "look": "cprofile ended: RuntimeError: no look",
        "stop": "cprofile cannot stop: RuntimeError: no stop", "write": "cprofile cannot write: RuntimeError: no write",
        "made": "cprofile cannot start: ImportError: not here",
        "file": f"{tmp_path}/profiles: is not a directory, so no profile can be kept there: move it away",
        "room": f"cprofile cannot write: OSError: [Errno 28] No space left on device in {tmp_path}/tmp: set TMPDIR to a directory with room",
    }  # fmt: skip
    if where == "folder":
        assert "is a symbolic link" in str(profiling.profile.note)
        assert not list((tmp_path / "elsewhere").iterdir())
    else:
        assert profiling.profile.note == expected[where]
    assert profiling.profile.file is None


def test_stopping_in_the_middle_of_a_training_is_part_of_what_a_profile_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("hpcrl.run.profiling.perf_counter", lambda: now[0])

    class Window(Failing):
        """Stops at its second look, in 5 seconds, and writes in 2."""

        looks = 0

        def look(self) -> bool:
            self.looks += 1
            now[0] += 5.0 if self.looks == 2 else 0.25
            return self.looks == 2

        def write(self, scratch: Path) -> Found:
            now[0] += 2.0
            (scratch / "x.txt").write_text("x")
            return Found(scratch / "x.txt", 1.0, [Function("f", 1.0, 1.0)])

    def make(name: str, framework: str | None) -> Any:
        return Window("nowhere")

    profiling = Profiling("framework", tmp_path, "c.a.n.r0.rec", 64, PhaseClock(), make=make)
    with profiling.training():
        for step in range(3):
            profiling.look(step)
    assert profiling.profile is not None and profiling.profile.seconds == 7.0


def test_a_profiler_that_is_not_there_leaves_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    profiling = Profiling("py-spy", tmp_path, "c.a.n.r0.rec", 64, PhaseClock())
    with profiling.training():
        assert list((tmp_path / "tmp").iterdir()) == []
    assert profiling.profile is not None
    assert profiling.profile.note == "py-spy cannot start: it is not on PATH in the cell's environment: add it there"


def test_an_error_of_the_training_is_not_hidden(tmp_path: Path) -> None:
    profiling = Profiling("cprofile", tmp_path, "c.a.n.r0.rec", 64, PhaseClock())
    with pytest.raises(ZeroDivisionError), profiling.training():
        1 / 0  # noqa: B018
    assert profiling.profile is not None and profiling.profile.file == "c.a.n.r0.pstats"


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "mode"), [("torch", "eager"), ("jax", "lazy"), ("tensorflow", "lazy")])
def test_a_framework_s_own_profiler(tmp_path: Path, framework: str, mode: str, hpcrl: Callable[..., Shown]) -> None:
    axes = {"framework": [framework], "execution": [mode]}
    study = dqn_study(axes=axes, profile="framework", goal=None)
    study["workload"]["hyperparameters"]["total_steps"] = 500
    plan = planned(tmp_path / "p", study)
    (cell,) = cells_of(plan)
    python = built_environment(framework).path / "bin/python"
    done = run_cell(plan, cell["id"], python=python)
    assert done.returncode == 0, done.stderr
    (found,) = profiles_of(plan)
    assert found.profile.note is None
    assert (found.path and found.path.name.endswith(".json.gz" if framework == "torch" else ".xplane.pb")) is True
    assert len(read_functions(found.profile.functions)) > 5
    assert "thread " in found.profile.stacks or framework == "torch"
    out = tmp_path / "trace.json.gz"
    assert hpcrl("profile", plan, "--cell", cell["id"], "--export", "trace", "-o", out).code == 0
    events = json.loads(gzip.decompress(out.read_bytes()))["traceEvents"]
    assert len([each for each in events if each.get("ph") == "X"]) > 50
