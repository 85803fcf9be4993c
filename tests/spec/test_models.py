from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from hpcrl.catalogue.registry import algorithms
from hpcrl.errors import SpecError, UsageError
from hpcrl.spec.document import validate
from hpcrl.spec.library import Library
from hpcrl.spec.notify import read_notify
from tests.builders import command_study, dqn_study, write_yaml

LIBRARY = Library()


@pytest.mark.parametrize("name", LIBRARY.files("clusters", ".yaml"))
def test_every_profile_is_good_and_sourced(name: str) -> None:
    from hpcrl.cli.cluster import _leaves
    from hpcrl.spec.cluster import ClusterProfile

    document = LIBRARY.document("clusters", name)
    profile = validate(ClusterProfile, document)
    assert profile.name == name
    assert LIBRARY.study(profile.default_study)
    for path, _ in _leaves(document.data, ()):
        assert path[0] == "sources" or document.origin(path).source, path


@pytest.mark.parametrize("name", LIBRARY.files("envs", ".yaml"))
def test_every_environment_is_good(name: str) -> None:
    spec = LIBRARY.environment(name)
    pins = spec.pins("cpu", horovod=False)
    assert not [pin for pin in pins if pin.startswith(("nvidia-c", "triton", "cuda"))]
    gym = "gym" if spec.not_built else "gymnasium"
    assert {"numpy", "psutil", gym} <= {pin.partition("==")[0] for pin in pins}


def test_an_environment_that_is_only_a_description_is_refused_with_file_and_line(tmp_path: Path) -> None:
    path = write_yaml(tmp_path / "study.yaml", command_study(["true"], environment="cirrus-2022"))
    line = path.read_text().splitlines().index("environment: cirrus-2022") + 1
    with pytest.raises(SpecError) as caught:
        LIBRARY.study(str(path))
    (problem,) = caught.value.problems
    start = f"{path}:{line}: environment: environment cirrus-2022 is not built: it needs Python 3.7, and "
    assert problem.startswith(start)
    assert problem.endswith(": choose another environment")


@pytest.mark.parametrize("name", LIBRARY.files("jobs", ".yaml"))
def test_every_study_is_good(name: str) -> None:
    assert LIBRARY.study(name).name == name


def fault_of(tmp_path: Path, study: dict[str, Any]) -> str:
    path = write_yaml(tmp_path / "study.yaml", study)
    with pytest.raises(SpecError) as caught:
        LIBRARY.study(str(path))
    assert len(caught.value.problems) == 1
    return caught.value.problems[0].removeprefix(f"{path}:")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"axes": {"variant": []}}, "axes.variant: has no values"),
        ({"axes": {"cpus": [0]}}, "axes.cpus.0: expected a number of at least 1, got 0"),
        ({"axes": {"time": ["1 h"]}}, '"1 h" is not a Slurm time; try 01:00:00'),
        ({"axes": {"variant": ["a", "a"]}}, "axes.variant: repeats a value"),
        ({"axes": {"seed": [1]}}, "`seed` is not an axis"),
        ({"axes": {"a b": [1]}}, "'a b' is not a name"),
        ({"seeds": 0}, "seeds: expected a number of at least 1"),
        ({"retry": {"timeuot": {}}}, "retry.timeuot: unknown key; did you mean 'timeout'?"),
        ({"retry": {"oom": {"memroy": "x2"}}}, "retry.oom.memroy: unknown key; did you mean 'memory'?"),
        (
            {"retry": {"timeout": {"exclude_node": True}}},
            "retry.timeout.exclude_node: unknown key; there are: at_most, memory, time",
        ),
        ({"retry": {"timeout": {"time": 2}}}, 'retry.timeout.time: "2" is not a factor; try x2 or x1.5'),
        ({"retry": {"timeout": {"time": "x1"}}}, '"x1" is not a factor between x1 and x10'),
        ({"retry": {"timeout": {"time": "x10.5"}}}, '"x10.5" is not a factor between x1 and x10'),
        ({"retry": {"oom": {"memory": "x-2"}}}, '"x-2" is not a factor; try x2 or x1.5'),
        ({"retry": {"oom": {"at_most": 101}}}, "retry.oom.at_most: expected a number of at most 100, got 101"),
        ({"retry": {"oom": {"at_most": -1}}}, "retry.oom.at_most: expected a number of at least 0, got -1"),
        ({"retry": {"failed": {"at_most": True}}}, "retry.failed.at_most: expected a whole number, got true"),
        ({"notify": "mail me"}, '"mail me" is not an http(s) URL without a user name; write a command as a list'),
        ({"notify": "https://me:secret@example.org/x"}, "is not an http(s) URL without a user name"),
        ({"notify": []}, "expected an http(s) URL, or a command as a list of words"),
        ({"notify": ["mail", 3]}, "expected an http(s) URL, or a command as a list of words"),
        (
            {"workload": {"command": ["true"], "on_warning": "HUP"}},
            "workload.on_warning: expected 'USR2', 'TERM' or 'none', got 'HUP'",
        ),
        ({"exclude": [{"varant": "a"}]}, "exclude.0.varant: no axis 'varant'; did you mean 'variant'?"),
        ({"workload": {"command": ["x", "{varant}"]}}, "{varant} is not an axis; did you mean 'variant'?"),
        ({"workload": {"command": ["x"], "env": {"WANDB_API_KEY": "1"}}}, "WANDB_API_KEY looks like a secret"),
        ({"workload": {}}, "expected either `algorithm`"),
        ({"workload": {"command": []}}, "`command` is empty"),
        ({"resources": {"memory": 4}}, '"4" is not a memory with a unit (K, M, G or T); try 4M '),
        ({"resources": {"tme": "1:00"}}, "resources.tme: unknown key; did you mean 'time'?"),
        ({"resources": {"seeds": 3}}, "resources.seeds: unknown key here: seeds is a key of the file's top level"),
        ({"tensorboard": "live"}, "tensorboard: expected 'none', 'during' or 'after', got 'live'"),
        ({"tensorboard": "after"}, "tensorboard: `tensorboard` is for built-in training: remove it"),
        (
            dqn_study(axes={"framework": ["numpy"], "tensorboard": ["none", "yes"]}),
            "axes.tensorboard.1: expected none, during or after, got 'yes'",
        ),
        (
            {"profile": "cprofil"},
            "profile: expected none, cprofile, py-spy, memray or framework, got 'cprofil'; did you mean 'cprofile'?",
        ),
        (
            {"profile": "cprofile"},
            "profile: cprofile runs Python programs, but the command is 'true': begin it with python",
        ),
        (
            {"axes": {"profile": ["none", "fast"]}, "workload": {"command": ["python", "x.py"]}},
            "axes.profile.1: expected none, cprofile, py-spy, memray or framework, got 'fast'",
        ),
        (
            {"axes": {"profile": ["none", "cprofile"]}, "workload": {"command": ["python", "x.py", "{profile}"]}},
            "workload: {profile} is the profiler, which looks at a program from outside: give your own axis another name",
        ),
        ({"computed": {"profile": "1"}}, "computed.profile: profile cannot be computed: make it an axis instead"),
        ({"profile": "cprofile", "workload": {"command": ["python", "-"]}}, "cprofile runs Python programs"),
        (dqn_study(profile="framework"), "profile: NumPy has no profiler of its own: use cprofile"),
        (
            dqn_study(axes={"framework": ["torch", "mxnet"], "profile": ["none", "framework"]}),
            "axes.profile.1: MXNet has no profiler of its own: use cprofile: leave it out with `exclude: [{framework: mxnet, profile: framework}]`",
        ),
        (
            {"profile": "framework", "workload": {"command": ["python", "x.py"]}},
            "profile: framework is for built-in training: use cprofile or py-spy or memray for a command",
        ),
        (
            {"profile": "py-spy", "environment": {"container": "x.sif"}, "workload": {"command": ["python", "x.py"]}},
            "profile: py-spy cannot look into a container: use cprofile",
        ),
        ({"profile_limit": 64}, 'profile_limit: "64" is not a memory with a unit'),
        (
            dqn_study(profile="cprofile", search={"trials": 2, "space": {"learning_rate": {"low": 0.1, "high": 0.2}}}),
            "profile: the trials of a search are compared by what a profiler changes: remove `profile`",
        ),
        ({"name": "a/b"}, "name: expected a name of letters, digits, _ . + and -"),
        ({"name": "a\nb"}, "name: expected a name of letters, digits, _ . + and -"),
    ],
)
def test_faults_of_a_study(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    assert expected in fault_of(tmp_path, command_study(["true"]) | changes)


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ({"framework": ["torhc"]}, "no framework 'torhc'; did you mean 'torch'?"),
        ({"framework": ["torch"], "execution": ["lasy"]}, "no execution mode 'lasy'; did you mean 'lazy'?"),
        ({"execution": ["lazy"]}, "`framework` is missing"),
        (
            {"framework": ["numpy"], "learning_rte": [0.1]},
            "axes.learning_rte: no hyperparameter or resource 'learning_rte'; did you mean 'learning_rate'?",
        ),
        (
            {"framework": ["numpy"], "x": [{"learning_rte": 0.1}]},
            "axes.x.0.learning_rte: no hyperparameter or resource",
        ),
        ({"framework": ["numpy"], "gamma": [0.9, 1.5]}, "axes.gamma.1: expected a number from 0 to 1, got 1.5"),
        ({"framework": ["numpy"], "double": [1]}, "axes.double.0: expected true or false, got 1"),
        (
            {"framework": ["numpy"], "optimizer": ["adan"]},
            "axes.optimizer.0: no optimizer 'adan'; did you mean 'adam'?",
        ),
        (
            {"framework": ["numpy", "torch"], "execution": ["lazy"]},
            "axes.execution.0: numpy: execution: expected one of eager, got 'lazy': leave",
        ),
        (
            {"framework": ["numpy"], "gpus": [0, 1]},
            "axes.gpus.1: NumPy supports the CPU only: leave it out with `exclude: [{framework: numpy, gpus: 1}]`",
        ),
    ],
)
def test_faults_of_a_training_study(tmp_path: Path, axes: dict[str, Any], expected: str) -> None:
    assert expected in fault_of(tmp_path, dqn_study(axes=axes))


def _two_algorithms(**changes: Any) -> dict[str, Any]:
    options = [{"algorithm": "ppo", "environments": 4, "minibatch_size": 64}, {"algorithm": "rainbow", "n_step": 5}]
    study = dqn_study(axes={"algorithm": options, "framework": ["numpy"]}) | changes
    study["workload"] = {"environment": "CartPole-v1", "hyperparameters": {"total_steps": 500}}
    return study


def test_the_algorithm_may_be_an_axis(tmp_path: Path) -> None:
    study = LIBRARY.study(str(write_yaml(tmp_path / "two.yaml", _two_algorithms())))
    assert [each.name for each in study.algorithms()] == ["ppo", "rainbow"]
    assert study.algorithm_of({"algorithm": "rainbow"}) is algorithms()["rainbow"]


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (("workload", "hyperparameters", "n_step"), 3, "workload.hyperparameters.n_step: PPO has no hyperparameter 'n_step', but Rainbow has: set it together"),
        (("workload", "hyperparameters", "n_stap"), 3, "workload.hyperparameters.n_stap: no hyperparameter 'n_stap'"),
        (("axes", "n_step"), [1, 3], "axes.n_step: PPO has no hyperparameter 'n_step', but Rainbow has"),
        (("axes", "algorithm"), ["ppo", "rainbwo"], "axes.algorithm.1: no algorithm 'rainbwo'; did you mean 'rainbow'?"),
        (("axes", "algorithm"), [{"algorithm": "rainbow", "minibatch_size": 64}, "ppo"], "minibatch_size: Rainbow has no hyperparameter 'minibatch_size', but PPO has"),
        (("axes", "algorithm"), [{"algorithm": "ppo", "environments": 3}], "axes.algorithm.0.algorithm: minibatch_size 256: expected a divisor of a rollout"),
        (("workload", "algorithm"), "ppo", "workload.algorithm: `algorithm` is an axis, too: remove one of the two"),
        (("axes",), {"framework": ["numpy"]}, "workload: `algorithm` is missing: name it here or as an axis"),
        (("include",), [{"framework": "numpy", "total_steps": 10}], "include: a cell has no `algorithm`: name it in every cell"),
        (("workload", "environment"), "Pendulum-v1", "PPO: expected discrete actions, got continuous ones of Pendulum-v1"),
    ],
)  # fmt: skip
def test_faults_of_a_study_of_two_algorithms(tmp_path: Path, path: tuple[str, ...], value: Any, expected: str) -> None:
    study = _two_algorithms()
    place = study
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert expected in fault_of(tmp_path, study)


def _two_environments(**axes: Any) -> dict[str, Any]:
    study = dqn_study(axes={"framework": ["numpy"], "environment": ["CartPole-v1", "Doors-v0"], **axes})
    del study["workload"]["environment"]
    return study


def test_the_environment_may_be_an_axis(tmp_path: Path) -> None:
    choice = ["CartPole-v1", {"environment": "Doors-v0", "same_column": True}]
    study = LIBRARY.study(str(write_yaml(tmp_path / "two.yaml", _two_environments(environment=choice))))
    assert study.environment_ids() == ["CartPole-v1", "Doors-v0"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"environment": ["CartPole-v1", "Door-v0"]}, "axes.environment.1: there is no environment 'Door-v0'; did you mean 'Doors-v0'?"),
        ({"environment": ["CartPole-v1", 5]}, "axes.environment.1: expected the id of a Gymnasium environment, such as CartPole-v1, got 5"),
        ({"environment": ["CartPole-v1", "Pendulum-v1"]}, "axes.environment.1: DQN: expected discrete actions, got continuous ones of Pendulum-v1"),
        ({"same_column": [True, False]}, "axes.same_column: CartPole-v1 has no option 'same_column', but Doors-v0 has: set it together with the environment"),
        ({"environment": [{"environment": "Doors-v0", "size": 2}, "CartPole-v1"]}, "axes.environment.0.size: expected a whole number from 3 to 100, got 2"),
        ({"environment": [{"environment": "Doors-v0", "size": 3, "doors": 5}, "CartPole-v1"]}, "axes.environment.0.doors: expected at most size, which is 3, got 5"),
        ({"stepping": ["sync", "arrays"]}, "only Doors-v0: leave it out with `exclude: [{environment: CartPole-v1, stepping: arrays}]`"),
        ({"framework": ["jax"], "environment": ["CartPole-v1", "LunarLander-v3"], "stepping": ["compiled"]}, "exclude: [{environment: LunarLander-v3, framework: jax, stepping: compiled}]`"),
        ({"environment": ["CartPole-v1", "BoxSlider64-v0"], "framework": ["mxnet"]}, "leave it out with `exclude: [{environment: BoxSlider64-v0, framework: mxnet}]`"),
    ],
)  # fmt: skip
def test_faults_of_a_study_of_two_environments(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    told = fault_of(tmp_path, _two_environments(**changes))
    assert expected in told
    assert len(told.splitlines()) == 1


def test_each_cell_has_one_environment(tmp_path: Path) -> None:
    both = _two_environments()
    both["workload"]["environment"] = "CartPole-v1"
    assert "workload.environment: `environment` is an axis, too: remove one of the two" in fault_of(tmp_path, both)
    neither = dqn_study()
    del neither["workload"]["environment"]
    expected = "workload: `environment` is missing: name it here or as an axis, such as CartPole-v1"
    assert fault_of(tmp_path, neither).endswith(expected)
    without = _two_environments() | {"include": [{"framework": "numpy", "gamma": 0.9}]}
    assert fault_of(tmp_path, without).endswith("include: a cell has no `environment`: name it in every cell")
    computed = dqn_study(computed={"environment": "seed"})
    assert "environment cannot be computed: make it an axis instead" in fault_of(tmp_path, computed)


def test_environments_are_compiled_beside_learners_whose_software_can_have_jax(tmp_path: Path) -> None:
    study = dqn_study(axes={"framework": ["jax", "numpy", "torch", "mxnet"], "stepping": ["sync", "compiled"]})
    study["workload"] = {"algorithm": "ppo", "environment": "CartPole-v1"}
    rule = "leave it out with `exclude: [{framework: mxnet, stepping: compiled}]`"
    expected = (
        f"axes.stepping.1: MXNet: stepping: expected one of sync, processes, pipes, arrays, got 'compiled': {rule}"
    )
    assert expected in fault_of(tmp_path, study)
    study["exclude"] = [{"framework": "mxnet", "stepping": "compiled"}]
    LIBRARY.study(str(write_yaml(tmp_path / "study.yaml", study)))
    study |= {"axes": {"framework": ["mxnet"]}, "exclude": []}
    study["workload"]["hyperparameters"] = {"stepping": "compiled"}
    assert "workload.hyperparameters.stepping: MXNet: stepping: expected one of" in fault_of(tmp_path, study)
    # The environment of another framework is JAX's, too; its training is not.
    study["axes"], study["workload"]["environment"] = {"framework": ["torch"]}, "Acrobot-v1"
    assert "JAX has no Acrobot-v1 as a compiled program, only CartPole-v0" in fault_of(tmp_path, study)
    study["workload"]["environment"], study["axes"]["execution"] = "CartPole-v1", ["fused"]
    assert "torch: execution: expected one of eager, lazy, got 'fused'" in fault_of(tmp_path, study)


def test_a_process_for_each_environment_needs_processes(tmp_path: Path) -> None:
    for algorithm in ("dqn", "ppo", "vpg", "random_policy"):
        study = dqn_study(axes={"framework": ["numpy"], "stepping": ["processes", "sync"]}, goal=None)
        study["workload"] = {"algorithm": algorithm, "environment": "CartPole-v1"}
        study["workload"]["hyperparameters"] = {"workers": "environments"}
        told = "hyperparameters.workers: environments: needs stepping processes or pipes, got sync"
        assert told in fault_of(tmp_path, study)
        study["exclude"] = [{"stepping": "sync"}]
        LIBRARY.study(str(write_yaml(tmp_path / "study.yaml", study)))


@pytest.mark.parametrize("algorithm", ["dqn", "rainbow"])
def test_an_off_policy_learner_in_a_fused_mode_has_one_environment(tmp_path: Path, algorithm: str) -> None:
    study = dqn_study(axes={"framework": ["jax"], "execution": ["lazy", "fused"], "environments": [1, 4]})
    study["workload"]["algorithm"] = algorithm
    study["workload"]["hyperparameters"]["train_interval"] = 256
    told = "axes.environments.1: fused has the environment in the learner's program: environments does not apply"
    rule = "leave it out with `exclude: [{execution: fused, environments: 4}]`"
    assert f"{told}: {rule}" in fault_of(tmp_path, study)
    study["axes"]["environments"] = [1, 4, 5]
    study["exclude"] = [{"execution": "fused"}]
    told = "train_interval: 256: expected a multiple of environments, which is 5"
    assert told in fault_of(tmp_path, study)


def test_only_doors_are_many_in_arrays(tmp_path: Path) -> None:
    study = dqn_study(axes={"framework": ["numpy"], "stepping": ["sync", "arrays"]})
    study["workload"] = {"algorithm": "ppo", "environment": "CartPole-v1"}
    expected = "axes.stepping.1: there is no CartPole-v1 as NumPy arrays, only Doors-v0: leave it out with `exclude: [{stepping: arrays}]`"
    assert expected in fault_of(tmp_path, study)
    study["workload"]["environment"] = "Doors-v0"
    LIBRARY.study(str(write_yaml(tmp_path / "study.yaml", study)))


@pytest.mark.parametrize("axes", [{"execution": ["lazy", "fused"]}, {"stepping": ["sync", "compiled"]}])
def test_environments_that_jax_does_not_have_are_not_compiled(tmp_path: Path, axes: dict[str, Any]) -> None:
    study = dqn_study(axes={"framework": ["jax"], **axes})
    ((key, (_, value)),) = axes.items()
    rule = f"leave it out with `exclude: [{{framework: jax, {key}: {value}}}]`"
    told = "JAX has no {} as a compiled program, only CartPole-v0, CartPole-v1, Doors-v0, MountainCar-v0"
    study["workload"] = {"algorithm": "ppo", "environment": "Acrobot-v1"}
    assert f"axes.{key}.1: {told.format('Acrobot-v1')}: {rule}" in fault_of(tmp_path, study)
    # Whether another package has its environment in JAX is known in the cell.
    for environment in ("CartPole", "MountainCar-v0", "mine.package:Maze-v0"):
        study["workload"] = {"algorithm": "ppo", "environment": environment}
        LIBRARY.study(str(write_yaml(tmp_path / "study.yaml", study)))


def test_modes_that_one_of_the_algorithms_lacks_are_refused_with_its_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(algorithms(), "rainbow", replace(algorithms()["rainbow"], fused=False))
    study = _two_algorithms()
    study["axes"] |= {"framework": ["jax"], "execution": ["lazy", "fused"]}
    expected = "axes.execution.1: Rainbow has no fused mode: leave it out with `exclude: [{algorithm: rainbow, framework: jax, execution: fused}]`"
    assert expected in fault_of(tmp_path, study)
    study["exclude"] = [{"algorithm": "rainbow", "execution": "fused"}]
    LIBRARY.study(str(write_yaml(tmp_path / "study.yaml", study)))


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        ({"hyperparameters": {"learning_rte": 0.1}}, "workload.hyperparameters.learning_rte: no hyperparameter 'learning_rte'; did you mean 'learning_rate'?"),
        ({"hyperparameters": {"learning_rate": float("nan")}}, "workload.hyperparameters.learning_rate: expected a number greater than 0, got nan"),
        ({"hyperparameters": {"learning_rate": float("inf")}}, "expected a number greater than 0, got inf"),
        ({"hyperparameters": {"total_steps": 0}}, "expected a whole number from 1 to 1,000,000,000,000, got 0 (default 50000)"),
        ({"hyperparameters": {"hidden": [0]}}, "expected a list of whole numbers from 1 to 1,000,000, or a text such as 128x64, got [0] (default [256, 256])"),
        ({"algorithm": "dnq"}, "workload.algorithm: no algorithm 'dnq'; did you mean 'dqn'?"),
        ({"environment": "CartPole-v11"}, "workload.environment: there is no environment 'CartPole-v11'; did you mean 'CartPole-v1'?"),
        ({"environment": "Hopper-v3"}, "workload.environment: Gymnasium knows Hopper-v3, but no longer has it: use Hopper-v5"),
        ({"environment": "BoxSlidr-v0"}, "there is no environment 'BoxSlidr-v0'; did you mean 'BoxSlider-v0'?"),
        ({"algorithm": "rainbow", "environment": "BoxSlider64-v0"}, "Rainbow: expected observations that are a vector, got uint8 of shape (64, 64, 3) of BoxSlider64-v0"),
        ({"environment": "Pendulum-v1"}, "DQN: expected discrete actions, got continuous ones of Pendulum-v1"),
        ({"algorithm": "vpg", "environment": "FrozenLake-v1"}, "VPG: expected observations that are a vector, got Discrete"),
        ({"environment": "FrozenLake-v1"}, "DQN: expected observations that are a vector or a square image (height, width, channels) of uint8, got Discrete of FrozenLake-v1"),
        ({"env": {"FLAG": "{learning_rte}"}}, "workload.env.FLAG: {learning_rte} is not an axis"),
    ],
)  # fmt: skip
def test_faults_of_a_training_workload(tmp_path: Path, workload: dict[str, Any], expected: str) -> None:
    study = dqn_study()
    study["workload"] |= workload
    assert expected in fault_of(tmp_path, study)


def test_environments_of_other_packages_are_left_to_the_cell(tmp_path: Path) -> None:
    study = dqn_study()
    (tmp_path / "touching.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')")
    study["workload"]["environment"] = "touching:Mine-v0"
    assert LIBRARY.study(str(write_yaml(tmp_path / "study.yaml", study))).workload.environment == "touching:Mine-v0"
    assert not (tmp_path / "imported").exists()


def test_an_axis_may_be_a_placeholder_s(tmp_path: Path) -> None:
    study = dqn_study(axes={"framework": ["numpy"], "level": [1, 2]})
    study["workload"]["env"] = {"LEVEL": "{level}"}
    assert LIBRARY.study(str(write_yaml(tmp_path / "study.yaml", study))).axes["level"] == (1, 2)


def test_faults_name_their_own_lines(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(
        "name: s\ntitle: S\nworkload:\n  command:\n    - run\n    - '{varant}'\naxes:\n  variant: [a]\n  cpus:\n    - 1\n"
        "    - 0\nexclude:\n  - {variant: a}\n  - variant: a\n    varant: b\nseeds: 1000000000\n"
    )
    with pytest.raises(SpecError) as caught:
        LIBRARY.study(str(path))
    assert caught.value.problems == [f"{path}:16: seeds: expected at most 1,000,000 seeds, got 1,000,000,000"]
    path.write_text(path.read_text().replace("1000000000", "1"))
    with pytest.raises(SpecError) as caught:
        LIBRARY.study(str(path))
    assert [problem.removeprefix(f"{path}:").split(": ")[:2] for problem in caught.value.problems] == [
        ["6", "workload.command.1"], ["11", "axes.cpus.1"], ["15", "exclude.1.varant"]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"partitions": {"htc": {"node_types": ["standrd"]}}}, "no node type 'standrd'; did you mean 'standard'?"),
        ({"partitions": {"htc": {"qos": ["pubic"]}}}, "no QOS 'pubic'; did you mean 'public'?"),
        (
            {"required_flags": ["partiton"]},
            "'partiton' is not an sbatch flag that profiles know; did you mean 'partition'?",
        ),
        (
            {"billing": {"unit": "x", "expression": "cors * 2"}},
            "unknown name 'cors' in a billing expression; did you mean 'cores'?",
        ),
        ({"gpu_request": "gress"}, "gpu_request: expected 'gres_typed', "),
        ({"script": {"directives": {"account": "me"}}}, "is personal: leave it out"),
        ({"environments": {"build_partition": "lightwrok"}}, "no partition 'lightwrok'; did you mean 'lightwork'?"),
        ({"qos": {"debug": {"max_time": None, "overrides_partition_time": True}}}, "needs a max_time"),
        ({"billing": {"unknown": ["gh2000"]}}, "billing.unknown: no GPU type 'gh2000'; did you mean 'gh200'?"),
        ({"scheduler": {"preempt_mode": "KILL"}}, "preempt_mode"),
        ({"scheduler": {"accounting_store_flags": ["job_comments"]}}, "accounting_store_flags"),
        ({"node_types": {"standard": {"constraint": "a b"}}}, "constraint"),
        ({"allocation_unit": "gpu"}, "allocation_unit"),
    ],
)
def test_faults_of_a_profile(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    path = write_yaml(tmp_path / "mine.yaml", {"extends": "sol", **changes})
    with pytest.raises(SpecError) as caught:
        LIBRARY.cluster(str(path))
    assert expected in str(caught.value)


def test_an_environment_must_pin_exactly_and_keep_cuda_off_the_cpu(tmp_path: Path) -> None:
    spec = {"name": "x", "title": "X", "python": "3.11", "flavours": {"cpu": {"packages": ["torch>=2"]}}}
    with pytest.raises(SpecError, match=r"flavours\.cpu\.packages\.0: expected an exact pin such as torch==2"):
        LIBRARY.environment(str(write_yaml(tmp_path / "x.yaml", spec)))
    spec["flavours"] = {"cpu": {"packages": ["nvidia-cublas-cu12==12.1"]}}
    with pytest.raises(SpecError, match="the cpu flavour must not have CUDA packages"):
        LIBRARY.environment(str(write_yaml(tmp_path / "x.yaml", spec)))


def test_retry_is_typed_and_kept_in_the_study(tmp_path: Path) -> None:
    asked = {
        "timeout": {"time": "x2", "at_most": 2},
        "oom": {"memory": "x1.5", "at_most": 3},
        "node_fail": {"at_most": 3, "exclude_node": True},
        "preempted": {},
        "failed": {"at_most": 0},
    }
    study = LIBRARY.study(str(write_yaml(tmp_path / "s.yaml", command_study(["true"], retry=asked))))
    assert study.retry.timeout is not None
    assert (study.retry.timeout.time, study.retry.timeout.memory, study.retry.timeout.at_most) == (2.0, None, 2)
    assert study.model_dump(mode="json", exclude_none=True)["retry"] == {
        "timeout": {"time": 2.0, "at_most": 2},
        "oom": {"memory": 1.5, "at_most": 3},
        "node_fail": {"at_most": 3, "exclude_node": True},
        "preempted": {"at_most": 1},
        "failed": {"at_most": 0},
    }
    with pytest.raises(ValidationError, match="frozen"):
        study.retry.timeout.at_most = 5  # type: ignore[misc]
    nothing = LIBRARY.study(str(write_yaml(tmp_path / "n.yaml", command_study(["true"]))))
    assert nothing.model_dump(mode="json", exclude_none=True)["retry"] == {}


def test_built_in_training_takes_its_own_signal(tmp_path: Path) -> None:
    study = dqn_study()
    study["workload"]["on_warning"] = "TERM"
    assert "`on_warning` is for commands: built-in training always saves" in fault_of(tmp_path, study)


@pytest.mark.parametrize("value", ["https://example.org/hook?x=1", ["mail", "-s", "two words", "me@example.org"]])
def test_notify_in_a_study(tmp_path: Path, value: str | list[str]) -> None:
    study = LIBRARY.study(str(write_yaml(tmp_path / "s.yaml", command_study(["true"], notify=value))))
    assert study.model_dump(mode="json")["notify"] == value


def test_notify_on_the_command_line() -> None:
    assert read_notify("https://example.org/x") == "https://example.org/x"
    assert read_notify("mail -s 'two words' me@example.org") == ("mail", "-s", "two words", "me@example.org")
    for text, expected in [
        ("", "--notify: expected an http"),
        ("mail 'x", '--notify: "mail \'x" is not a command line: No closing quotation'),
        ("https://a b", '--notify: "https://a b" is not an http'),
    ]:
        with pytest.raises(UsageError) as caught:
            read_notify(text)
        assert str(caught.value).startswith(expected)
