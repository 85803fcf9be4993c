"""What an environment costs its user, measured in real ones: NumPy's and PyTorch's."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcrl.environments.build import Built
from hpcrl.environments.measure import measure, size_of
from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.usability import Measurement, read_usability
from tests.builders import ENVIRONMENTS, built_environment
from tests.conftest import Shown
from tests.environments.test_build import built, environment

ROOT = Path(__file__).parents[2]


def runs_of(each: Built, repeats: int = 1) -> list[Measurement]:
    return list(measure(each.environment, each.path, repeats, say=lambda text: None))


@pytest.mark.slow
def test_numpy_costs_little() -> None:
    first, second = runs_of(built_environment("numpy"), repeats=2)
    assert (first.framework, first.execution, first.device) == ("numpy", "eager", "cpu")
    assert 0 < first.import_seconds < 60
    assert 0 < first.update_seconds < first.first_update_seconds < 60
    assert 20 * 2**20 < first.peak_memory < 400 * 2**20
    assert 20 * 2**20 < first.size == second.size < 2**30
    assert first.traceback_end.startswith("ValueError: matmul")
    assert "size 5 is different from 4" in first.traceback_end
    assert first.names_page
    assert 5 < first.traceback_lines == second.traceback_lines < 60
    page = (ROOT / "hpcrl/rl/specification/dqn.py").read_text()
    assert first.lines["dqn"] == len([line for line in page.splitlines() if line.strip()])
    assert {"core", "dqn", "ppo", "rainbow"} <= set(first.lines)


@pytest.mark.slow
def test_a_compiled_mode_costs_more_than_an_eager_one() -> None:
    eager, lazy = runs_of(built_environment("torch"))
    assert (eager.execution, lazy.execution) == ("eager", "lazy")
    assert eager.version.startswith("2.")
    assert lazy.first_update_seconds > 5 * eager.first_update_seconds
    assert lazy.traceback_lines > 2 * eager.traceback_lines
    assert eager.traceback_end == "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x4 and 5x256)"
    assert eager.names_page
    assert eager.lines == lazy.lines
    assert "collectives" not in eager.lines


@pytest.mark.slow
def test_the_command_writes_what_the_report_reads(
    tmp_path: Path, hpcrl: Callable[..., Shown], monkeypatch: pytest.MonkeyPatch
) -> None:
    built_environment("numpy")
    monkeypatch.setenv("HPCRL_ENVIRONMENTS", str(ENVIRONMENTS))
    shown = hpcrl("env", "measure", "numpy", "--repeats", 1, "-o", tmp_path / "u.json", "--json")
    assert shown.code == 0, shown.err
    measured = read_usability(tmp_path / "u.json")
    assert [run.environment.partition("-")[0] for run in measured.runs] == ["numpy"]
    assert measured.machine["threads"] > 0
    assert json.loads(shown.out) == json.loads((tmp_path / "u.json").read_text())


def test_what_cannot_be_measured(tmp_path: Path, hpcrl: Callable[..., Shown], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCRL_ENVIRONMENTS", str(tmp_path))
    for words, text in (
        ((), "expected names of environments, or --plan PLAN"),
        (("numppy",), "no environment 'numppy'; did you mean 'numpy'?"),
        (("numpy", "--repeats", "0"), "0 is not in the range 1<=x<=100"),
    ):
        shown = hpcrl("env", "measure", *words)
        assert (shown.code, text in shown.err) == (2, True), shown.err
    shown = hpcrl("env", "measure", "torch", "--horovod")
    assert shown.code == 1
    assert shown.err.endswith(": not built: run hpcrl env create torch --horovod\n")
    with pytest.raises(UsageError, match="tiny: expected an environment of a framework"):
        list(measure(environment(), tmp_path, 1))


def test_a_file_with_two_names_counts_once_and_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/one").write_bytes(b"x" * 1000)
    os.link(tmp_path / "a/one", tmp_path / "a/b/two")
    (tmp_path / "large").write_bytes(b"x" * 5000)
    (tmp_path / "a/link").symlink_to("../large")
    assert size_of(tmp_path / "a") == 1000 + len("../large")


@pytest.mark.slow
def test_the_time_of_a_whole_build_is_recorded(tmp_path: Path) -> None:
    marker = built(tmp_path, environment()).path / "hpcrl-environment.json"
    recorded: dict[str, Any] = json.loads(marker.read_text())
    assert 0 < recorded["build_seconds"] < 300
    marker.unlink()
    built(tmp_path, environment())
    assert "build_seconds" not in json.loads(marker.read_text())


def test_a_marker_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "hpcrl-environment.json").write_text("[")
    with pytest.raises(HpcrlError, match="cannot be read: build the environment again"):
        list(measure(environment(framework="numpy"), tmp_path, 1))
