from __future__ import annotations

from typing import Any

import pytest

from hpcrl.errors import UsageError
from hpcrl.plan.placement import NoPlace, Placement, place
from hpcrl.plan.requests import request
from hpcrl.spec.cluster import ClusterProfile
from hpcrl.spec.library import Library
from hpcrl.spec.study import Pin, Resources

PROFILES = {name: Library().cluster(name) for name in ("sol", "cirrus", "cirrus-legacy")}


def asked(**changes: Any) -> Resources:
    return Resources.model_validate({"memory": "4G", "time": "01:00:00", **changes})


def placed(profile: ClusterProfile | str, pin: Pin | None = None, **changes: Any) -> Placement:
    found = place(PROFILES[profile] if isinstance(profile, str) else profile, asked(**changes), pin or Pin())
    assert isinstance(found, Placement), found
    return found


def refused(profile: str, pin: Pin | None = None, **changes: Any) -> NoPlace:
    found = place(PROFILES[profile], asked(**changes), pin or Pin())
    assert isinstance(found, NoPlace), found
    return found


def options(profile: ClusterProfile | str, account: str | None = "lab", **changes: Any) -> dict[str, Any]:
    chosen = PROFILES[profile] if isinstance(profile, str) else profile
    return dict(request(chosen, placed(chosen, **changes), asked(**changes), account, None).directives)


def test_cpu_cells_keep_off_gpu_nodes() -> None:
    assert placed("sol").node_type == "standard"
    assert placed("sol").partition == "htc"


def test_where_every_node_has_gpus_cpu_cells_run_there_too() -> None:
    here = PROFILES["sol"].node_types["gpu-a100"]
    alone = PROFILES["sol"].model_copy(update={"node_types": {name: here for name in PROFILES["sol"].node_types}})
    found = placed(alone)
    assert (found.node_type, found.gpus_per_node) == ("standard", 0)


def test_a_long_cell_goes_where_it_may() -> None:
    assert placed("sol", time="10:00:00").partition == "public"
    assert placed("cirrus", time="3-00:00:00").qos == "long"


def test_128_cores_beside_a_gpu_on_sol() -> None:
    found = refused("sol", cpus=128, gpus=1, gpu_type="a100")
    assert "asks for 128 cores per node beside an a100, but gpu-a100 nodes have 48" in found.reason
    assert found.nearest == "cpus: 48 would fit (partition htc, QOS public, gpu-a100 nodes)"


def test_horovod_gpus_on_a_cluster_without_any() -> None:
    found = refused("cirrus", gpus=2, tasks=2, parallelism="horovod")
    assert "EPCC, Cirrus EX4000 has no GPU" in found.reason
    assert found.nearest is not None
    assert found.nearest.startswith("gpus: 0 (the same horovod ranks on CPU cores) would fit")


@pytest.mark.parametrize(
    ("profile", "changes", "reason", "nearest"),
    [
        ("sol", {"gpus": 1, "gpu_type": "h100"}, "has none of that type (it has a100, a30, gh200)", "gpu_type: a100"),
        ("sol", {"gpus": 8, "gpu_type": "a100"}, "8 GPUs per node, but gpu-a100 nodes have 4", "gpus: 4"),
        ("sol", {"time": "30-00:00:00"}, "asks for 30-00:00:00", "time: 7-00:00:00"),
        ("sol", {"memory": "3T"}, "asks for 3072G per node, but standard nodes have 512G", "memory: 2048G"),
        ("cirrus", {"cpus": 300}, "standard nodes have 288", "cpus: 288"),
        ("cirrus", {"nodes": 1000}, "asks for 1000 nodes", "nodes: "),
        ("cirrus-legacy", {"gpus": 3}, "gives 1, 2, 4", "gpus: 2"),
        ("cirrus-legacy", {"gpus": 4, "nodes": 2}, "means all 4 GPUs of each", "nodes: 1"),
    ],
)
def test_why_not_and_what_instead(profile: str, changes: dict[str, Any], reason: str, nearest: str) -> None:
    found = refused(profile, **changes)
    assert reason in found.reason
    assert found.nearest is not None
    assert found.nearest.startswith(nearest)


def test_what_is_offered_as_nearest_does_fit() -> None:
    assert placed("sol", cpus=48, gpus=1, gpu_type="a100").node_type == "gpu-a100"


def test_a_pin_is_obeyed_or_refused() -> None:
    assert placed("sol", Pin(partition="lightwork", qos="debug"), time="00:10:00").partition == "lightwork"
    assert "at most 8" in refused("sol", Pin(partition="lightwork"), cpus=16).reason
    assert "does not take QOS long" in refused("sol", Pin(partition="htc", qos="long")).reason
    with pytest.raises(UsageError, match="no partition 'gpu'"):
        placed("sol", Pin(partition="gpu"))


def test_memory_comes_with_cores_where_it_may_not_be_asked_for() -> None:
    found = placed("cirrus", memory="8G")
    assert found.cpus_per_task == 4  # 8192 MiB at 2666 MiB a core
    assert "mem" not in options("cirrus", memory="8G")


def test_each_site_is_asked_in_its_own_way() -> None:
    sol = options("sol", gpus=2, gpu_type="a100")
    assert sol["gres"] == "gpu:a100:2"
    assert sol["mem"] == "4096M"
    legacy = options("cirrus-legacy", gpus=2)
    assert legacy["gres"] == "gpu:2"
    assert not {"ntasks", "cpus-per-task", "mem"} & set(legacy)
    launch = request(PROFILES["cirrus-legacy"], placed("cirrus-legacy", gpus=2), asked(gpus=2), "lab", None).launch
    assert "--ntasks=1" in launch
    assert "--cpus-per-task=1" in launch
    whole = options("cirrus-legacy", gpus=8, nodes=2)
    assert whole["gres"] == "gpu:4"
    assert whole["exclusive"] is True


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("gres_typed", {"gres": "gpu:a100:2"}),
        ("gres", {"gres": "gpu:2"}),
        ("gpus", {"gpus": 2}),
        ("gpus_typed", {"gpus": "a100:2"}),
        ("constraint", {"constraint": "gpu", "gpus": 2}),
        ("partition_only", {}),
    ],
)
def test_every_style_of_asking_for_gpus(style: str, expected: dict[str, Any]) -> None:
    profile = PROFILES["sol"].model_copy(update={"gpu_request": style})
    found = options(profile, gpus=2, gpu_type="a100")
    assert {key: found[key] for key in ("gres", "gpus", "constraint") if key in found} == expected


def test_a_site_that_wants_an_account() -> None:
    with pytest.raises(UsageError, match="the site wants an account with every job: give --account"):
        options("cirrus", account=None)


def test_a_forbidden_flag_that_a_cell_needs() -> None:
    profile = PROFILES["sol"].model_copy(update={"forbidden_flags": {"gres": "TACC refuses it"}})
    with pytest.raises(UsageError, match=r"the site forbids --gres \(TACC refuses it\), but this cell needs it"):
        options(profile, gpus=1, gpu_type="a100")
