"""What `hpcrl plan` says of algorithms for continuous actions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import registry

from hpcrl.errors import SpecError
from hpcrl.spec.library import Library
from tests.builders import dqn_study, write_yaml

LIBRARY = Library()


class Unbounded(gymnasium.Env[Any, Any]):
    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,))
        self.action_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))


@pytest.fixture(autouse=True)
def environments() -> Iterator[None]:
    gymnasium.register("Unbounded-v0", entry_point=Unbounded)
    yield
    del registry["Unbounded-v0"]


def faults(
    tmp_path: Path, environment: str, algorithm: str = "td3", axes: dict[str, Any] | None = None, **values: Any
) -> list[str]:
    study = dqn_study(axes={"framework": ["jax"]} | (axes or {}))
    study["workload"] = {"algorithm": algorithm, "environment": environment, "hyperparameters": values}
    path = write_yaml(tmp_path / "study.yaml", study)
    try:
        LIBRARY.study(str(path))
    except SpecError as error:
        return [problem.partition(": ")[2] for problem in error.problems]
    return []


def test_td3_takes_bounded_continuous_actions(tmp_path: Path) -> None:
    assert faults(tmp_path, "Pendulum-v1", axes={"policy_delay": [1, 2]}) == []
    told = "workload.environment: TD3: expected continuous actions, got discrete ones of CartPole-v1"
    assert faults(tmp_path, "CartPole-v1") == [told]
    wanted = "expected actions between finite bounds, got a number from -inf to inf in Unbounded-v0"
    assert faults(tmp_path, "Unbounded-v0") == [f"workload.environment: TD3: {wanted}"]
    assert faults(tmp_path, "Unbounded-v0", "vpg") == []


@pytest.mark.parametrize("algorithm", ["td3", "vpg"])
def test_an_activation_that_does_not_exist(tmp_path: Path, algorithm: str) -> None:
    (told,) = faults(tmp_path, "Pendulum-v1", algorithm, activation="rellu")
    assert told == "workload.hyperparameters.activation: no activation 'rellu'; did you mean 'relu'?"


def test_td3_has_no_fused_mode(tmp_path: Path) -> None:
    (told,) = faults(tmp_path, "Pendulum-v1", axes={"execution": ["lazy", "fused"]})
    rule = "leave it out with `exclude: [{framework: jax, execution: fused}]`"
    assert told == f"axes.execution.1: TD3 has no fused mode: {rule}"
