"""What people write at their first try: it works, or it is one sentence that says what to write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcrl.errors import SpecError
from hpcrl.secrets import looks_secret, secret_among
from hpcrl.spec.library import Library
from tests.builders import command_study, dqn_study, write_yaml


def faults(tmp_path: Path, study: dict[str, Any]) -> list[str]:
    file = write_yaml(tmp_path / "s.yaml", study)
    try:
        Library().study(str(file))
    except SpecError as error:
        return [text.removeprefix(f"{file}:").partition(": ")[2] for text in error.problems]
    return []


def test_resources_are_placeholders(tmp_path: Path) -> None:
    assert faults(tmp_path, command_study(["run", "--workers", "{cpus}", "{memory}", "{time}", "{workdir}"])) == []


@pytest.mark.parametrize("value", [[[64, 64], [128, 128]], [float("nan")], [None]])
def test_a_value_of_the_wrong_kind_is_one_fault(tmp_path: Path, value: Any) -> None:
    study = dqn_study()
    study["axes"]["hidden"] = value
    assert len(faults(tmp_path, study)) == len(value)
    assert " or " in faults(tmp_path, study)[0]


def test_a_value_that_is_to_be_left_out_must_be_there(tmp_path: Path) -> None:
    study = dqn_study(exclude=[{"framework": "troch"}])
    study["axes"]["framework"] = ["numpy", "torch"]
    assert faults(tmp_path, study) == ["exclude.0.framework: the axis has no value 'troch'; did you mean 'torch'?"]
    study["exclude"] = [{"framework": "torch", "execution": "eager"}]
    assert faults(tmp_path, study) == []


def test_a_seed_twice_and_a_nul_character(tmp_path: Path) -> None:
    assert faults(tmp_path, command_study(["true"], seeds=[1, 2, 1])) == ["seeds: repeats 1"]
    assert faults(tmp_path, command_study(["a\0b"])) == ["workload.command.0: contains a NUL character"]


@pytest.mark.parametrize(
    "name", ["TOKENIZERS_PARALLELISM", "MAX_TOKENS", "NUM_TOKENS", "TOKEN_LENGTH", "PASS_THROUGH", "SSH_AUTH_SOCK"]
)
def test_harmless_names(name: str) -> None:
    assert not looks_secret(name)


@pytest.mark.parametrize("name", ["API_TOKENS", "HF_TOKEN", "SERVICE_TOKEN", "DB_PASS", "MY_AUTH"])
def test_names_of_secrets(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize(
    "words",
    [
        ["--mask-token", "[MASK]"],
        ["--credentials", "creds.json"],
        ["agent.token=bos"],
        ["task-force-1-to-the-rescue-now"],
    ],
)
def test_harmless_command_lines(words: list[str]) -> None:
    assert secret_among(words) is None


@pytest.mark.parametrize(
    "words",
    [
        ["--wandb-key", "0123456789abcdef0123456789abcdef01234567"],
        ["x", "sk-" + "a1" * 15],
        ["eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl"],
        ["--hook", "https://hooks.slack.com/services/T0/B0/x"],
    ],
)  # fmt: skip
def test_secrets_on_command_lines(words: list[str]) -> None:
    assert secret_among(words) is not None


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"workload": {"command": ["sleep", 5]}}, "workload.command.1: expected a text, got 5; put it in quotes"),
        ({"workload": {"command": "sleep 5"}}, "workload.command: expected a list, got 'sleep 5'; put it in brackets"),
        ({"title": True}, "title: expected a text, got true; put it in quotes"),
        ({"seeds": 2.5}, "seeds: expected a number of seeds or a list of them, got 2.5"),
        ({"seeds": []}, "seeds: expected a number of at least 1, or a list with at least one seed, got []"),
        (
            {"axes": {"variant": [[16, 8], "b"]}},
            "axes.variant.0: expected a text, a whole number, a number, true or false or a mapping of keys to values, got a list; write it as a text: '16x8'",
        ),
        ({"exclude": [{"variant": False}]}, "exclude.0.variant: the axis has no value false; there are: a"),
    ],
)
def test_a_wrong_value_is_said_as_it_is_written(tmp_path: Path, change: dict[str, Any], fault: str) -> None:
    assert faults(tmp_path, command_study(["true"]) | change) == [fault]


def test_a_wrong_hyperparameter_is_said_as_it_is_written(tmp_path: Path) -> None:
    study = dqn_study()
    study["workload"]["hyperparameters"] |= {"gamma": True, "double": "no", "hidden": [1, None]}
    expected = {
        "gamma: expected a number from 0 to 1, got true (default 0.99)",
        "double: expected true or false, got 'no' (default false)",
        "hidden: expected a list of whole numbers from 1 to 1,000,000, or a text such as 128x64, got [1, nothing] (default [256, 256])",
    }
    assert {each.removeprefix("workload.hyperparameters.") for each in faults(tmp_path, study)} == expected


def test_a_study_that_extends_itself(tmp_path: Path) -> None:
    file = write_yaml(tmp_path / "mine.yaml", command_study(["true"]))
    file.write_text(f"extends: {file}\n" + file.read_text())
    with pytest.raises(SpecError, match=r"mine\.yaml:1: extends: .*mine\.yaml extends itself: name another file"):
        Library().study(str(file))


def test_an_environment_that_does_not_exist(tmp_path: Path) -> None:
    assert faults(tmp_path, command_study(["true"], environment="troch")) == [
        "environment: no environment 'troch'; did you mean 'torch'?"
    ]


def test_settings_that_do_not_fit_together(tmp_path: Path) -> None:
    """Each is valid alone. A place is that of the axis or hyperparameter that sets it."""
    shared = dqn_study(axes={"framework": ["torch"], "parallelism": ["native"], "tasks": [3]})
    assert faults(tmp_path, shared)[0].startswith("workload.algorithm: 3 ranks cannot share batch_size 64, train_")
    small = dqn_study(axes={"framework": ["numpy"], "batch_size": [64, 128]})
    small["workload"]["hyperparameters"] = {"buffer_size": 100}
    assert faults(tmp_path, small) == ["axes.batch_size.1: 128: expected at most buffer_size, which is 100"]
    ppo = dqn_study(axes={"framework": ["numpy"], "environments": [4, 8]})
    ppo["workload"] = {"algorithm": "ppo", "environment": "CartPole-v1", "hyperparameters": {"minibatch_size": 256}}
    assert faults(tmp_path, ppo) == [
        "workload.hyperparameters.minibatch_size: 256: expected a divisor of a rollout, which is environments x rollout_steps = "
        "4 x 32 = 128 transitions"
    ]


@pytest.mark.parametrize("value", [True, "2", 1.0])
@pytest.mark.parametrize("key", ["cpus", "gpus", "nodes", "tasks"])
def test_a_count_is_a_whole_number_everywhere(tmp_path: Path, key: str, value: Any) -> None:
    wrong = f"expected a whole number, got {'true' if value is True else repr(value)}"
    assert faults(tmp_path, dqn_study(resources={key: value})) == [f"resources.{key}: {wrong}"]
    for axes in ({key: [value]}, {"hardware": [{key: value}]}):
        (found,) = faults(tmp_path, dqn_study(axes={"framework": ["torch"], **axes}))
        assert found.endswith(wrong)


@pytest.mark.parametrize("key", ["goal", "max_parallel", "sample_interval", "calibration_seconds", "idle_seconds"])
def test_true_is_not_a_number(tmp_path: Path, key: str) -> None:
    (found,) = faults(tmp_path, dqn_study(**{key: True}))
    assert found.startswith(f"{key}: expected a ")
    assert found.endswith("number, got true")


@pytest.mark.parametrize("value", [{"algorithm": ["dqn"]}, {"algorithm": None}, {"a": {"b": 1}}])
def test_a_wrong_value_in_a_mapping_of_an_axis_is_one_fault_at_its_place(tmp_path: Path, value: dict[str, Any]) -> None:
    (found,) = faults(tmp_path, dqn_study(axes={"framework": ["numpy"], "algorithm": [value]}))
    assert found.startswith(f"axes.algorithm.0.{next(iter(value))}: expected a text, a whole number")


def test_a_setting_of_a_wrong_kind_is_one_fault(tmp_path: Path) -> None:
    study = dqn_study()
    study["workload"] |= {"algorithm": "ppo", "hyperparameters": {"stepping": ["compiled"]}}
    (found,) = faults(tmp_path, study)
    assert found.startswith(
        "workload.hyperparameters.stepping: expected sync or processes or pipes or arrays or compiled, got ["
    )


def test_a_long_value_is_cut(tmp_path: Path) -> None:
    for changes in ({"tensorboard": "x" * 5000}, {"axes": {"framework": ["numpy"], "exclusive": ["x" * 5000]}}):
        (found,) = faults(tmp_path, dqn_study(**changes))
        assert len(found) < 400
