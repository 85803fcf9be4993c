"""What an environment costs its user, measured in real ones: NumPy's and PyTorch's."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcrl.catalogue.registry import frameworks
from hpcrl.environments.build import Built
from hpcrl.environments.measure import check_measurable, measure, size_of
from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.plan import read_plan
from hpcrl.formats.usability import Failure, Measurement, read_usability
from hpcrl.spec.library import Library
from tests.builders import ENVIRONMENTS, built_environment, dqn_study, planned
from tests.conftest import Shown
from tests.environments.test_build import built, environment

ROOT = Path(__file__).parents[2]


def runs_of(each: Built, repeats: int = 1) -> list[Measurement]:
    runs = list(measure(each.environment, each.path, repeats, say=lambda text: None))
    assert not [run for run in runs if isinstance(run, Failure)]
    return [run for run in runs if isinstance(run, Measurement)]


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
        check_measurable(environment())


FACTS = {
    "device": "cpu", "first_update_seconds": 1.0, "update_seconds": 0.1, "peak_memory": 1, "lines": {"core": 1},
    "traceback_lines": 1, "traceback_characters": 1, "traceback_end": "E", "names_page": True,
}  # fmt: skip


def pretended(path: Path, lazy: str, imports: str = "echo 0.5 2.0") -> Path:
    """Make an environment whose Python runs these lines of a shell script; the eager mode works."""
    (path / "bin").mkdir(parents=True)
    (path / "hpcrl-environment.json").write_text("{}")
    script = f"#!/bin/sh\n[ $1 = -c ] && {{ {imports}; exit; }}\n[ $4 = eager ] && {{ echo '{json.dumps(FACTS)}'; exit; }}\n{lazy}\n"
    (path / "bin/python").write_text(script)
    (path / "bin/python").chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("lazy", "reason"),
    [
        ("echo no compiler >&2; exit 1", "lazy mode cannot be measured: no compiler"),
        ("kill -9 $$", "lazy mode cannot be measured: no output"),
        ("exec sleep 1000", "lazy mode cannot be measured: it did not end in 1 seconds"),
        ("true", "expected a JSON object in the last line of its output, got ''"),
        ("echo rubbish", "expected a JSON object in the last line of its output, got 'rubbish'"),
        (r"printf '\377\n'", "expected a JSON object in the last line of its output, got '\ufffd'"),
        ("yes rubbish | head -c 5000000", "got 'rubbish'"),
        ("printf '%050000d' 0 | tr 0 '['", "got '[[[["),
        ("echo '[1]'", "expected a JSON object in the last line of its output, got '[1]'"),
        ("echo '{}'", "lazy mode cannot be measured: a measurement is incomplete"),
        (f"echo '{json.dumps(FACTS | {'update_seconds': float('nan')})}'", "'update_seconds': expected a number"),
        (f"echo '{json.dumps(FACTS | {'lines': {'a': {}}})}'", "'lines': got \"{'a': {}}\", which has a wrong type"),
    ],
)
def test_a_mode_that_fails_has_a_reason_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lazy: str, reason: str
) -> None:
    if "sleep" in lazy:
        monkeypatch.setattr("hpcrl.environments.measure._MOST_SECONDS", 1.0)
    said: list[str] = []
    path = pretended(tmp_path / "e", lazy)
    first, failed, second = measure(environment(framework="torch"), path, 2, say=said.append)
    assert isinstance(first, Measurement) and isinstance(second, Measurement)
    assert (first.execution, first.version, first.import_seconds) == ("eager", "2.0", 0.5)
    assert isinstance(failed, Failure)
    assert (failed.framework, failed.execution) == ("torch", "lazy")
    assert reason in failed.reason
    assert "\n" not in failed.reason
    assert len([text for text in said if "measuring lazy" in text]) == 1


@pytest.mark.parametrize("imports", ["exit 1", "true", "echo rubbish", "echo x 2.0"])
def test_a_framework_that_does_not_import_fails_in_each_mode(tmp_path: Path, imports: str) -> None:
    runs = list(
        measure(environment(framework="torch"), pretended(tmp_path / "e", "", imports), 2, say=lambda text: None)
    )
    assert [type(each) for each in runs] == [Failure, Failure]
    assert all(isinstance(each, Failure) and each.reason.startswith("import torch, six fails: ") for each in runs)


def test_the_import_time_is_of_all_that_a_cell_imports(tmp_path: Path) -> None:
    modules = ["gymnasium", "jax", "flax", "optax"]
    path = pretended(tmp_path / "e", "exit 1", f"shift 2; echo $@ >> '{tmp_path}/asked'; echo 0.5 2.0")
    next(iter(measure(environment(framework="jax", imports=modules), path, 1, say=lambda text: None)))
    # Once to read the files, and once to measure.
    assert (tmp_path / "asked").read_text().splitlines() == 2 * ["jax gymnasium flax optax"]


def third_parties(tree: ast.Module) -> set[str]:
    """Return the packages that a file imports when it is imported, but for Python's own and hpcrl."""
    names = [
        name
        for node in tree.body
        for name in (
            [alias.name for alias in node.names] if isinstance(node, ast.Import)
            else [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        )
    ]  # fmt: skip
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"hpcrl"}


@pytest.mark.parametrize("framework", list(frameworks()))
def test_an_environment_names_what_the_files_of_its_framework_import(framework: str) -> None:
    files = (ROOT / "hpcrl/rl/frameworks" / framework).glob("*.py")
    needed = set().union(*(third_parties(ast.parse(file.read_text())) for file in files))
    assert framework in needed
    assert needed <= {*Library().environment(framework).imports, "numpy"}


# Prints the modules that the updates import, although all should be there.
LATE = """\
import sys
from hpcrl.rl import usability
framework, execution = sys.argv[1:]
usability.load(framework, execution)
before = set(sys.modules)
usability.times(framework, execution, "cpu")
print(*(set(sys.modules) - before))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "execution"),
    [
        ("numpy", "eager"),
        ("torch", "eager"),
        ("tensorflow", "eager"),
        ("jax", "eager"),
        ("jax", "fused"),
        ("mxnet", "eager"),
    ],
)
def test_the_time_of_the_first_update_has_no_import(framework: str, execution: str) -> None:
    place = built_environment(framework)
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [place.path / "bin/python", "-c", LATE, framework, execution]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True, timeout=600)
    late = set(done.stdout.splitlines()[-1].split())
    assert not late & set(place.environment.imports)
    assert not [name for name in late if name.startswith("hpcrl.rl.frameworks.")]


def test_the_command_keeps_what_it_measured(
    tmp_path: Path, hpcrl: Callable[..., Shown], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCRL_ENVIRONMENTS", str(tmp_path))
    name = hpcrl("env", "check", "torch").err.split(": not built")[0].rpartition("/")[2]
    pretended(tmp_path / name, "exit 1")
    shown = hpcrl("env", "measure", "torch", "--repeats", 1, "-o", tmp_path / "u.json")
    assert shown.code == 1
    assert "lazy mode cannot be measured: no output" in shown.err
    assert f"{tmp_path / 'u.json'}: 1 run and 1 failed mode: hpcrl report" in shown.out
    measured = read_usability(tmp_path / "u.json")
    assert [each.execution for each in measured.runs] == ["eager"]
    assert [each.execution for each in measured.failures] == ["lazy"]
    (tmp_path / "file").touch()
    for place, why in (("", "Is a directory"), ("file/u.json", "Not a directory")):
        shown = hpcrl("env", "measure", "torch", "-o", tmp_path / place)
        assert (shown.code, shown.err) == (1, f"hpcrl: {tmp_path / place}: cannot be written: {why}\n")


def test_a_plan_s_environments_that_are_built_are_measured_and_the_others_named(
    tmp_path: Path, hpcrl: Callable[..., Shown], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCRL_ENVIRONMENTS", str(tmp_path / "e"))
    plan = planned(tmp_path / "p", dqn_study(axes={"framework": ["numpy", "torch"]}))
    numpy, torch = (one.key for one in read_plan(plan).environments)
    words = ("env", "measure", "--plan", plan, "--repeats", 1, "-o", tmp_path / "u.json")
    shown = hpcrl(*words)
    assert shown.code == 1
    assert [f"{key}: not built: run hpcrl env create --plan {plan}" in shown.err for key in (numpy, torch)] == [
        True
    ] * 2
    assert not (tmp_path / "u.json").exists()
    pretended(tmp_path / "e" / torch, f"echo '{json.dumps(FACTS)}'")
    shown = hpcrl(*words)
    assert shown.code == 1
    assert f"{numpy}: not built: run hpcrl env create --plan {plan}" in shown.err
    measured = read_usability(tmp_path / "u.json")
    assert [(run.environment, run.execution) for run in measured.runs] == [(torch, "eager"), (torch, "lazy")]
    pretended(tmp_path / "e" / numpy, "")
    assert hpcrl(*words).code == 0


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
    assert built(tmp_path, environment()).made
    assert json.loads(marker.read_text())["build_seconds"] > 0  # what was interrupted is built anew, not continued


def test_a_marker_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "hpcrl-environment.json").write_text("[")
    with pytest.raises(HpcrlError, match="cannot be read: build the environment again"):
        list(measure(environment(framework="numpy"), tmp_path, 1))
