"""JAX's compiled loop, in JAX's environment, where it can be looked into: between two calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcrl.formats.worker import worker_zip
from tests.builders import built_environment
from tests.rl.test_frameworks import run_program

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    worker = tmp_path_factory.mktemp("fused") / "worker.zip"
    worker.write_bytes(worker_zip())
    quick = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # compiling is most of the time
    out = run_program(built_environment("jax"), worker, "tests.rl.fused_program", **quick)
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def test_what_is_stored_when_it_learns_and_how_it_goes_on(facts: dict[str, Any]) -> None:
    # CartPole cannot fall in five steps: each episode was cut off, and none ended.
    assert facts["cut off"] == [0, 18]
    assert facts["follows"]
    assert facts["values apart"] < 1e-4
    apart, updates = facts["steps apart"]
    assert apart < 1e-5
    assert updates == 40  # five at each tenth step from the twentieth to the ninetieth
    chi_square = facts["permutations"].pop("chi-square of 23")
    assert 9 < chi_square < 50  # 0.999 of each side
    assert facts["permutations"].pop("ascents") == pytest.approx(0.5, abs=0.01)
    assert facts["permutations"] == {"whole": True, "alike": False}
    assert (facts["learnt at 90"], facts["learnt at 180"]) == (False, True)
    assert facts["target renewed"]
    assert not facts["one update at the last step"]  # where the learning rate has fallen to 0
    assert facts["stretches differ"] and facts["seeds differ"]
    assert facts["exploring"] == pytest.approx(0.5, abs=0.2)
    assert facts["resumed"]


def test_several_rollouts_of_a_call_are_those_of_several_calls(facts: dict[str, Any]) -> None:
    one, three = facts["rollouts"]
    assert one == three
    assert one["step"] == 63
    assert [episode[0] for episode in one["episodes"]] == [step for step in (15, 30, 45, 60) for _ in range(3)]
    assert {(value, length) for _, value, length in one["episodes"]} == {(5.0, 5)}
    assert one["measures"]["divergence"] != 0


def test_rainbows_replay_is_that_of_the_other_modes(tmp_path: Path) -> None:
    worker = tmp_path / "worker.zip"
    worker.write_bytes(worker_zip())
    out = run_program(built_environment("jax"), worker, "tests.rl.fused_rainbow_program")
    facts = json.loads(out.splitlines()[-1])
    for case in facts["windows"]:
        assert case["apart"] < 1e-6, case
        assert case["windows"] >= min(60, case["capacity"]) - case["pending"] - 1, case
    assert facts["drawn"] < 1e-3  # sums in float32 and in float64 differ at the borders
    assert facts["prioritized"] == [2.0, 1.0, 0.5, 2.0]
    assert 0.05 < facts["explores"]["True"] < 0.95
    assert facts["explores"]["False"] in (0.0, 1.0)
