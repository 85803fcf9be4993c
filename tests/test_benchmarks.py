"""The benchmarks' own programs: they run, measure what they say, and their settings are valid."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks.crossing import pays_from
from benchmarks.floors import MODES
from benchmarks.training_program import PEERS, TASKS
from benchmarks.training_speed import _PEERS, Contender, one_thread
from hpcrl.catalogue.fields import check
from hpcrl.catalogue.registry import algorithms
from hpcrl.formats.worker import worker_zip
from tests.builders import built_environment

ROOT = Path(__file__).parents[1]


def run(python: Path | str, code: str, path: str = str(ROOT)) -> str:
    done = subprocess.run(
        [python, "-c", code], env=one_thread(path), cwd="/", capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("name", list(TASKS))
def test_settings_are_valid(name: str) -> None:
    algorithm = algorithms()[name]
    settings = check(name, algorithm.settings, TASKS[name].settings)
    assert algorithm.fault(settings, 1) is None
    assert settings.total_steps == TASKS[name].steps > TASKS[name].warm
    # A rate counts from the first report at `warm` or later: an evaluation must not end an interval before.
    assert settings.evaluation_interval == TASKS[name].warm


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.environment == "CartPole-v1"])
def test_each_algorithm_trains_a_little(name: str) -> None:
    code = f"""
from benchmarks import training_program as program
small = {{"total_steps": 2_048, "evaluation_interval": 1_024, "learning_starts": 512}}
given = program.TASKS[{name!r}].settings
settings = given | {{key: value for key, value in small.items() if key in given}}
program.TASKS[{name!r}] = program.Task("CartPole-v1", 2_048, 1_024, settings)
print(program.ours("numpy", "eager", "framework", {name!r}))
"""
    assert float(run(sys.executable, code)) > 100


def test_every_peer_has_a_program() -> None:
    assert set(_PEERS) == set(TASKS)
    assert {program for peers in _PEERS.values() for _, _, program in peers} == set(PEERS)
    of_topologies = {"rllib"}
    assert {environment for peers in _PEERS.values() for _, environment, _ in peers} | of_topologies == {
        path.stem for path in (ROOT / "benchmarks/envs").glob("*.yaml")
    }


def test_the_table_names_what_is_stepped() -> None:
    here = [sys.executable]
    assert Contender(here).stepped() == version("gymnasium")
    assert Contender(here, "numpy").stepped() == f"numpy {version('numpy')}"
    assert Contender(here, None).stepped() == "own, in JAX"


def row(cost: float, sync: float, processes: float) -> dict[str, float]:
    return {"cost": cost, "sync": sync, "processes": processes}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([row(0, 1, 21), row(50, 51, 56), row(100, 101, 86), row(200, 201, 120)], "about 62 us on"),
        ([row(0, 1, 21), row(50, 51, 56)], "more than 50 us on, if at all"),
        ([row(5, 6, 5.5), row(50, 51, 26)], "less than 5.0 us on"),
        # One measurement that was disturbed says nothing: processes pay from where they always do.
        ([row(0, 1, 21), row(20, 30, 25), row(50, 51, 61), row(100, 101, 91)], "about 75 us on"),
    ],
)
def test_from_where_processes_pay(rows: list[dict[str, float]], said: str) -> None:
    assert pays_from(rows, "processes") == said


def test_steps_of_any_cost_are_taken_in_every_way() -> None:
    short = "import benchmarks.crossing_program as program, sys; program.STEPS, program.ROUNDS = 3, 2; program.main(2, 0, 300)"
    free, costly = json.loads(run(sys.executable, short))
    assert set(free) == {"cost", "sync", "processes", "pipes"} and min(free.values()) > 0
    assert costly["cost"] > free["cost"]


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "execution"), MODES)
def test_floors_compute_what_the_learner_does(tmp_path: Path, framework: str, execution: str) -> None:
    """The program itself compares the weights after three updates."""
    (tmp_path / "worker.zip").write_bytes(worker_zip())
    code = f"import benchmarks.floors_program as program; program.ROUNDS = program.CALLS = 1; program.main({framework!r}, {execution!r})"
    python = built_environment(framework).path / "bin/python"
    found = json.loads(run(python, code, f"{tmp_path / 'worker.zip'}:{ROOT}"))
    assert set(found) == {"act", "act floor", "update", "update floor"}


@pytest.mark.slow
def test_the_parts_of_the_fused_loop_are_less_than_the_whole(tmp_path: Path) -> None:
    (tmp_path / "worker.zip").write_bytes(worker_zip())
    code = "import benchmarks.fused_parts_program as program; program.REPEATS, program.ROUNDS = 2, 5; program.main()"
    found = json.loads(run(built_environment("jax").path / "bin/python", code, f"{tmp_path / 'worker.zip'}:{ROOT}"))
    whole, *parts = found.values()
    assert len(parts) == 5 and min(parts) > 0 and max(parts) < whole
