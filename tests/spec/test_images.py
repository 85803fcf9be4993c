"""What `hpcrl plan` says of environments that show images."""

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


class Shown(gymnasium.Env[Any, Any]):
    def __init__(self, height: int = 30, width: int = 30) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (height, width, 3), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(2)


@pytest.fixture(autouse=True)
def environments() -> Iterator[None]:
    gymnasium.register("Square-v0", entry_point=Shown)
    gymnasium.register("Wide-v0", entry_point=Shown, kwargs={"width": 40})
    yield
    del registry["Square-v0"], registry["Wide-v0"]


def faults(
    tmp_path: Path, environment: str = "Square-v0", algorithm: str = "dqn", filters: Any = (4, 4), **changes: Any
) -> list[str]:
    study = dqn_study(**changes)
    study["workload"] = {"algorithm": algorithm, "environment": environment}
    if algorithm == "dqn":
        study["workload"]["hyperparameters"] = {"filters": list(filters)}
    path = write_yaml(tmp_path / "study.yaml", study)
    try:
        LIBRARY.study(str(path))
    except SpecError as error:
        return [problem.partition(": ")[2] for problem in error.problems]
    return []


def test_dqn_takes_square_images(tmp_path: Path) -> None:
    assert faults(tmp_path, axes={"framework": ["numpy", "torch", "tensorflow", "jax"]}) == []
    wanted = "expected observations that are a vector or a square image (height, width, channels) of uint8"
    told = f"workload.environment: DQN: {wanted}, got uint8 of shape (30, 40, 3) of Wide-v0"
    assert faults(tmp_path, "Wide-v0") == [told]


@pytest.mark.parametrize(("algorithm", "title"), [("rainbow", "Rainbow"), ("ppo", "PPO")])
def test_the_other_algorithms_take_none(tmp_path: Path, algorithm: str, title: str) -> None:
    told = f"workload.environment: {title}: expected observations that are a vector, got uint8 of shape (30, 30, 3) of Square-v0"
    assert faults(tmp_path, algorithm=algorithm) == [told]


def test_frameworks_and_modes_without_images_are_named(tmp_path: Path) -> None:
    told = "axes.framework.1: hpcrl has no convolutions in MXNet, and Square-v0 shows images: leave it out with `exclude: [{framework: mxnet}]`"
    assert faults(tmp_path, axes={"framework": ["torch", "mxnet"]}) == [told]
    assert faults(tmp_path, "CartPole-v1", axes={"framework": ["torch", "mxnet"]}) == []
    (fused,) = faults(tmp_path, axes={"framework": ["jax"], "execution": ["lazy", "fused"]})
    assert "JAX has no Square-v0 as a compiled program" in fused


@pytest.mark.parametrize(
    ("filters", "told"),
    [
        ([4], []),
        ([4, 4, 4], ["kernels of 8, 4, 3 need images of at least 36 x 36, got 30 x 30"]),
        ([1, 1, 1, 1], ["expected one to three convolutions, got 4"]),
    ],
)
def test_filters_must_suit_the_images(tmp_path: Path, filters: list[int], told: list[str]) -> None:
    assert faults(tmp_path, filters=filters) == [f"workload.hyperparameters.filters: {each}" for each in told]
