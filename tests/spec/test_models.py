from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcrl.errors import SpecError
from hpcrl.spec.document import validate
from hpcrl.spec.library import Library
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
    assert {"numpy", "psutil", "gymnasium"} <= {pin.partition("==")[0] for pin in pins}


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
        ({"axes": {"cpus": [0]}}, "axes.cpus: cpus: input should be greater than or equal to 1, got 0"),
        ({"axes": {"time": ["1 h"]}}, '"1 h" is not a Slurm time; try 01:00:00'),
        ({"axes": {"variant": ["a", "a"]}}, "axes.variant: repeats a value"),
        ({"axes": {"seed": [1]}}, "seeds are no axis"),
        ({"axes": {"a b": [1]}}, "'a b' is not a name"),
        ({"seeds": 0}, "a study needs at least one seed"),
        ({"exclude": [{"varant": "a"}]}, "exclude: no axis 'varant'; did you mean 'variant'?"),
        ({"workload": {"command": ["x", "{varant}"]}}, "no axis for {varant}; did you mean 'variant'?"),
        ({"workload": {"command": ["x"], "env": {"WANDB_API_KEY": "1"}}}, "WANDB_API_KEY looks like a secret"),
        ({"workload": {}}, "give either `algorithm`"),
        ({"workload": {"command": []}}, "`command` is empty"),
        ({"resources": {"memory": 4}}, '"4" is not a memory with a unit (K, M, G or T); try 4G'),
        ({"resources": {"tme": "1:00"}}, "resources.tme: unknown key; did you mean 'time'?"),
        ({"name": "a/b"}, "name: string should match pattern"),
        ({"name": "a\nb"}, "name: string should match pattern"),
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
    ],
)
def test_faults_of_a_training_study(tmp_path: Path, axes: dict[str, Any], expected: str) -> None:
    assert expected in fault_of(tmp_path, dqn_study(axes=axes))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"partitions": {"htc": {"node_types": ["standrd"]}}}, "no node type 'standrd'; did you mean 'standard'?"),
        ({"partitions": {"htc": {"qos": ["pubic"]}}}, "no QOS 'pubic'; did you mean 'public'?"),
        ({"required_flags": ["partiton"]}, "'partiton' is not an sbatch flag known here; did you mean 'partition'?"),
        (
            {"billing": {"unit": "x", "expression": "cors * 2"}},
            "unknown name 'cors' in a billing expression; did you mean 'cores'?",
        ),
        ({"gpu_request": "gress"}, "gpu_request: input should be"),
        ({"script": {"directives": {"account": "me"}}}, "is personal and comes from the user"),
        ({"environments": {"build_partition": "lightwrok"}}, "no partition 'lightwrok'; did you mean 'lightwork'?"),
    ],
)
def test_faults_of_a_profile(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    path = write_yaml(tmp_path / "mine.yaml", {"extends": "sol", **changes})
    with pytest.raises(SpecError) as caught:
        LIBRARY.cluster(str(path))
    assert expected in str(caught.value)


def test_an_environment_must_pin_exactly_and_keep_cuda_off_the_cpu(tmp_path: Path) -> None:
    spec = {"name": "x", "title": "X", "python": "3.11", "flavours": {"cpu": {"packages": ["torch>=2"]}}}
    with pytest.raises(SpecError, match=r"flavours\.cpu\.packages\.0: string should match pattern"):
        LIBRARY.environment(str(write_yaml(tmp_path / "x.yaml", spec)))
    spec["flavours"] = {"cpu": {"packages": ["nvidia-cublas-cu12==12.1"]}}
    with pytest.raises(SpecError, match="the cpu flavour must not pull CUDA packages"):
        LIBRARY.environment(str(write_yaml(tmp_path / "x.yaml", spec)))
