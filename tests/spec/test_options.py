"""Options of a training study's environment: in the workload, and as axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcrl.errors import SpecError
from hpcrl.plan.expand import expand
from hpcrl.spec.library import Library
from hpcrl.spec.study import Study
from tests.builders import command_study, dqn_study, write_yaml

LIBRARY = Library()


def study_of(environment: str, options: dict[str, Any] | None = None, **axes: Any) -> dict[str, Any]:
    study = dqn_study(axes={"framework": ["numpy"], **axes})
    study["workload"] |= {"environment": environment}
    if options is not None:
        study["workload"]["environment_options"] = options
    return study


def read(tmp_path: Path, study: dict[str, Any]) -> Study:
    return LIBRARY.study(str(write_yaml(tmp_path / "study.yaml", study)))


def faults(tmp_path: Path, study: dict[str, Any]) -> list[str]:
    with pytest.raises(SpecError) as caught:
        read(tmp_path, study)
    return [problem.removeprefix(str(tmp_path / "study.yaml")) for problem in caught.value.problems]


def test_options_are_of_the_workload_and_axes(tmp_path: Path) -> None:
    study = read(tmp_path, study_of("Doors-v0", {"size": 9, "doors": 2}, same_column=[False, True], size=[5, 7]))
    assert study.workload.environment_options == {"size": 9, "doors": 2}
    points = [(point.config["same_column"], point.config["size"]) for point in expand(study)]
    assert points == [(False, 5), (False, 7), (True, 5), (True, 7)]


def test_a_study_without_options_is_as_it_was(tmp_path: Path) -> None:
    assert "environment_options" not in read(tmp_path, dqn_study()).workload.model_dump(exclude_none=True)


@pytest.mark.parametrize(
    ("study", "expected"),
    [
        (study_of("Doors-v0", {"sise": 9}), "workload.environment_options.sise: no option 'sise'; did you mean 'size'?"),
        (study_of("Doors-v0", {"size": "9"}), "workload.environment_options.size: expected a whole number from 3 to 100, got '9' (default 15)"),
        (study_of("Doors-v0", size=[9, 2]), "axes.size.1: expected a whole number from 3 to 100, got 2 (default 15)"),
        (study_of("Doors-v0", same_column=[0, True]), "axes.same_column.0: expected true or false, got 0 (default false)"),
        (study_of("Doors-v0", same_colum=[True]), "axes.same_colum: no hyperparameter, resource or option 'same_colum'; did you mean 'same_column'?"),
        (study_of("Doors-v0", {"doors": 6, "size": 5}), "workload.environment_options.doors: expected at most size, which is 5, got 6"),
        (study_of("Doors-v0", {"doors": 6}, size=[15, 5]), "workload.environment_options.doors: expected at most size, which is 5, got 6"),
        (study_of("Doors-v0", {"size": 5}, doors=[3, 6]), "axes.doors.1: expected at most size, which is 5, got 6"),
        (study_of("Doors-v0", size=[4, 2.5]), "axes.size.1: expected a whole number from 3 to 100, got 2.5"),
        (study_of("BoxSlider-v0", {"size": 64}), "workload.environment_options.size: BoxSlider-v0 has no options"),
        (study_of("CartPole-v1", {"sutton_bartow_reward": True}), "workload.environment_options.sutton_bartow_reward: no option 'sutton_bartow_reward' of CartPole-v1; did you mean 'sutton_barto_reward'?"),
        (study_of("CartPole-v1", {"sutton_barto_reward": 1}), "workload.environment_options.sutton_barto_reward: expected true or false, got 1 (default false)"),
        (study_of("CartPole-v1", {"sutton_barto_reward": False}, sutton_barto_reward=[True, "no"]), "axes.sutton_barto_reward.1: expected true or false, got 'no'"),
        (study_of("MountainCar-v0", {"goal_velocity": True}), "workload.environment_options.goal_velocity: expected a number, got true (default 0)"),
        (study_of("CartPole-v1", sutton_barto_reward=[False, True]), "axes.sutton_barto_reward: is an option of CartPole-v1: name its usual value in `environment_options` of the workload, too"),
        (study_of("Acrobot-v1", {"g": 1}), "workload.environment_options.g: Acrobot-v1 has no options"),
        (study_of("FrozenLake-v1", {"is_slippery": False}), "workload.environment: DQN: expected observations that are a vector"),
        (command_study(["true"]), "workload.environment_options: `environment_options` is for built-in training"),
    ],
)  # fmt: skip
def test_options_that_cannot_be(tmp_path: Path, study: dict[str, Any], expected: str) -> None:
    if "command" in study["workload"]:
        study["workload"]["environment_options"] = {"size": 3}
    told = faults(tmp_path, study)
    assert len(told) == 1 and f": {expected}" in told[0]


def test_faults_name_their_line(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(
        "name: s\ntitle: S\nworkload:\n  algorithm: dqn\n  environment: Doors-v0\n  environment_options:\n    size: 9\n    dors: 2\n"
        "axes:\n  framework: [numpy]\n  extra_step:\n    - true\n    - 2\n"
    )
    with pytest.raises(SpecError) as caught:
        LIBRARY.study(str(path))
    assert [problem.removeprefix(f"{path}:").split(": ")[:2] for problem in caught.value.problems] == [
        ["8", "workload.environment_options.dors"], ["13", "axes.extra_step.1"]
    ]  # fmt: skip


def test_options_of_gymnasium_s_environments_are_not_compiled(tmp_path: Path) -> None:
    axes = {"framework": ["jax"], "execution": ["lazy", "fused"]}
    study = study_of("CartPole-v1", {"sutton_barto_reward": True}, **axes)
    rule = "leave it out with `exclude: [{framework: jax, execution: fused}]`"
    told = f"axes.execution.1: JAX has CartPole-v1 as a compiled program without options: {rule}"
    assert faults(tmp_path, study)[0].endswith(told)
    read(tmp_path, study_of("Doors-v0", {"size": 9}, **axes))


def test_options_of_packages_that_are_not_here_are_left_to_the_cell(tmp_path: Path) -> None:
    study = study_of("mine:Maze-v0", {"level": 1}, level=[1, 2])
    assert [point.config["level"] for point in expand(read(tmp_path, study))] == [1, 2]
    assert (
        "axes.levle: no hyperparameter, resource or option"
        in faults(tmp_path, study_of("mine:Maze-v0", {"level": 1}, levle=[1]))[0]
    )


def test_the_limit_of_episodes_may_be_an_axis(tmp_path: Path) -> None:
    study = study_of("CartPole-v1", max_episode_steps=[100, 500])
    assert [point.config["max_episode_steps"] for point in expand(read(tmp_path, study))] == [100, 500]
    wrong = study_of("CartPole-v1", max_episode_steps=[100, 0.5])
    (said,) = faults(tmp_path, wrong)
    assert "axes.max_episode_steps.1: expected a whole number of at least 1, got 0.5" in said
