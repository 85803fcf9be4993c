"""The Python API from several threads, and from a script that does nothing special for processes."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from hpcrl import api
from hpcrl.collect import merge
from hpcrl.spec.patterns import pattern_faults
from tests.builders import command_study, write_yaml
from tests.collect.test_holding import contents, plan_with_records


def at_once(*work: Callable[[], object]) -> None:
    """Do all of it in threads of their own, from one moment on."""
    start, errors = threading.Barrier(len(work)), list[BaseException]()

    def begin(each: Callable[[], object]) -> None:
        start.wait()
        try:
            each()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=begin, args=(each,)) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def of_the_process() -> tuple[object, ...]:
    return dict(os.environ), Path.cwd(), pa.default_memory_pool().backend_name, warnings.filters[:]


def test_collecting_with_processes_changes_nothing_of_the_caller_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge, "BATCH_RECORDS", 1)
    plan = plan_with_records(tmp_path / "p", 3)
    before, meanwhile = of_the_process(), list[object]()
    api.collect([plan], tmp_path / "d", processes=2, progress=lambda done, total: meanwhile.append(of_the_process()))
    assert meanwhile == [before] * 3


def test_two_threads_that_collect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "BATCH_RECORDS", 2)
    plans = [plan_with_records(tmp_path / name, 4, rate) for name, rate in (("a", 0.001), ("b", 0.002))]
    before, collecting = of_the_process(), gc.isenabled()
    at_once(
        *(lambda each=each: api.collect([each], tmp_path / f"d-{each.name}", processes=2) for each in plans),
        *(lambda each=each: api.collect([each], tmp_path / "both", processes=1) for each in plans),
    )
    assert (of_the_process(), gc.isenabled()) == (before, collecting)
    for each in plans:
        api.collect([each], tmp_path / "one by one")
        api.collect([each], tmp_path / f"alone-{each.name}")
        assert contents(tmp_path / f"d-{each.name}") == contents(tmp_path / f"alone-{each.name}")
    assert contents(tmp_path / "both") == contents(tmp_path / "one by one")


def test_two_threads_that_plan(tmp_path: Path) -> None:
    study = write_yaml(tmp_path / "mine.yaml", command_study(["true"], seeds=3))
    before = of_the_process()[1:]  # gymnasium sets a variable when it is imported
    names = [str(number) for number in range(4)]
    at_once(*(lambda name=name: api.plan(study, output=tmp_path / name) for name in names))
    assert of_the_process()[1:] == before
    first, *others = (
        {file.relative_to(tmp_path / name): file.read_bytes() for file in (tmp_path / name).rglob("*.json*")}
        for name in names
    )
    assert first and all(each == first for each in others)


def test_threads_that_check_patterns_leave_the_filters_of_warnings() -> None:
    before = warnings.filters[:]
    many = {str(number): f"[[a]{{{number}}}]([0-9])" for number in range(20)}  # a FutureWarning each
    at_once(*[lambda: [list(pattern_faults(many)) for _ in range(20)]] * 8)
    assert warnings.filters[:] == before


def test_a_script_without_a_main_guard(tmp_path: Path) -> None:
    plan = plan_with_records(tmp_path / "p", 3)
    script = tmp_path / "mine.py"
    script.write_text(
        "from hpcrl import api\nfrom hpcrl.collect import merge\nmerge.BATCH_RECORDS = 1\n"
        f"print(api.collect([{str(plan)!r}], {str(tmp_path / 'd')!r}, processes=2).merged)\n"
    )
    (tmp_path / "pickle.py").write_text("raise SystemExit('code of a stranger')")
    done = subprocess.run(
        [sys.executable, "-P", str(script)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")
