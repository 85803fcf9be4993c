from __future__ import annotations

from typing import Any

import pytest

from hpcrl.errors import UsageError
from hpcrl.plan.cost import cost
from hpcrl.plan.notes import idle_notes, notes
from hpcrl.plan.placement import NoPlace, Placement, place
from hpcrl.plan.requests import request
from hpcrl.spec.cluster import ClusterProfile, GpuRequest
from hpcrl.spec.library import Library
from hpcrl.spec.resources import Resources
from hpcrl.spec.study import Pin

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


def test_cpu_cells_stay_on_one_model_of_cpu_where_the_site_lets_them() -> None:
    # In htc they could start on GPU nodes, which have other CPUs; in public the site keeps them off.
    found = placed("sol")
    assert (found.partition, found.node_type, found.node_types) == ("public", "standard", ("standard",))
    assert not found.any_node
    assert notes(PROFILES["sol"], [found]) == []
    # What only nodes of one CPU can take may go to htc.
    large = placed("sol", cpus=64)
    assert (large.partition, large.node_types) == ("htc", ("standard", "highmem"))
    assert notes(PROFILES["sol"], [large]) == []
    # What is not measured may run anywhere.
    spot = place(PROFILES["sol"], asked(), Pin(), any_cpu=True)
    assert isinstance(spot, Placement)
    assert spot.partition == "htc"


def test_cells_that_may_mix_cpus_are_said_to() -> None:
    found = placed("sol", Pin(partition="htc"))
    assert found.any_node
    assert found.node_types == ("standard", "gpu-a100", "gpu-a30", "highmem")
    assert notes(PROFILES["sol"], [found, found]) == [
        "cells in partition htc may start on different CPUs, whose times do not compare (2 x AMD EPYC 7713 on "
        "standard, highmem or 2 x AMD EPYC 7413 on gpu-a100, gpu-a30): sol has no option to choose one"
    ]


def test_a_node_type_is_asked_for_by_its_feature_where_it_has_one() -> None:
    standard = PROFILES["sol"].node_types["standard"].model_copy(update={"constraint": "epyc7713"})
    profile = PROFILES["sol"].model_copy(update={"node_types": {**PROFILES["sol"].node_types, "standard": standard}})
    found = placed(profile)
    assert (found.partition, found.node_types, found.constraint) == ("htc", ("standard",), "epyc7713")
    assert options(profile)["constraint"] == "epyc7713"
    assert "constraint" not in options(profile, gpus=1, gpu_type="a100")
    gpu = PROFILES["sol"].node_types["gpu-a100"].model_copy(update={"constraint": "a100_80"})
    both = profile.model_copy(
        update={"node_types": {**profile.node_types, "gpu-a100": gpu}, "gpu_request": GpuRequest.CONSTRAINT}
    )
    assert options(both, gpus=1, gpu_type="a100")["constraint"] == "gpu&a100_80"
    forbidden = profile.model_copy(update={"forbidden_flags": {"constraint": "no"}})
    with pytest.raises(UsageError, match="forbids --constraint"):
        options(forbidden)


def test_several_nodes_of_cirrus_are_had_whole() -> None:
    assert options("cirrus", nodes=2)["exclusive"] is True
    assert "exclusive" not in options("cirrus")
    assert "exclusive" not in options("sol", nodes=2)
    one, two = (cost(PROFILES["cirrus"], placed("cirrus", nodes=n), asked(nodes=n)) for n in (1, 2))
    assert (one.core_hours, two.core_hours) == (2, 2 * 288)


def test_a_cell_may_ask_for_a_whole_node_unless_the_site_forbids_that() -> None:
    wanted: dict[str, Any] = {"cpus": 4, "exclusive": True}
    assert options("cirrus-legacy", **wanted)["exclusive"] is True
    legacy = PROFILES["cirrus-legacy"]
    assert cost(legacy, placed(legacy, **wanted), asked(**wanted)).core_hours == 36
    forbids = legacy.model_copy(update={"forbidden_flags": {"exclusive": "nodes are shared"}})
    found = place(forbids, asked(**wanted), Pin())
    assert isinstance(found, NoPlace)
    assert (
        found.reason
        == "it asks for whole nodes, but EPCC, Cirrus ICE XA (switched off) forbids --exclusive (nodes are shared)"
    )
    assert found.nearest == "exclusive: false would fit (partition standard, QOS standard, standard nodes)"
    assert found.keys == ("exclusive",)
    # Where one partition alone forbids it, the cell goes to another.
    shared = legacy.partitions["standard"].model_copy(update={"forbidden_flags": {"exclusive": "nodes are shared"}})
    other = legacy.model_copy(update={"partitions": {**legacy.partitions, "standard": shared}})
    assert placed(other, **wanted).partition == "highmem"


@pytest.mark.parametrize(
    ("gpus", "requested", "told"),
    [
        (1, 1, "cells with 1 GPU have a whole gpu node: 3 of the 4 GPUs there are idle"),
        (2, 2, "cells with 2 GPUs have a whole gpu node: 2 of the 4 GPUs there are idle"),
        (3, 4, "cells with 3 GPUs have a whole gpu node: 1 of the 4 GPUs there is idle"),
        (4, 4, None),
    ],
)
def test_a_whole_node_may_have_more_gpus_than_the_cell_uses(gpus: int, requested: int, told: str | None) -> None:
    legacy, wanted = PROFILES["cirrus-legacy"], {"gpus": gpus, "exclusive": True}
    assert options("cirrus-legacy", **wanted)["gres"] == f"gpu:{requested}"
    found = placed("cirrus-legacy", **wanted)
    assert idle_notes(legacy, [(found, asked(**wanted))] * 2, trains=False) == ([told] if told else [])
    assert cost(legacy, found, asked(**wanted)).gpu_hours == 4
    shared = legacy.model_copy(update={"gpu_request": GpuRequest.GPUS})
    assert options(shared, **wanted)["gpus"] == requested


def test_several_whole_nodes_may_have_idle_gpus() -> None:
    legacy, wanted = PROFILES["cirrus-legacy"], {"gpus": 4, "nodes": 2, "exclusive": True}
    found = placed("cirrus-legacy", **wanted)
    assert (found.gpus_per_node, found.gpus) == (4, 8)
    assert idle_notes(legacy, [(found, asked(**wanted))], trains=False) == [
        "cells with 4 GPUs have 2 whole gpu nodes: 4 of the 8 GPUs there are idle"
    ]
    # The limits of a QOS are for what a job requests.
    small = legacy.qos["gpu"].model_copy(update={"max_gpus": 4})
    limited = legacy.model_copy(update={"qos": {**legacy.qos, "gpu": small, "long": small}})
    unfit = place(limited, asked(**wanted), Pin())
    assert isinstance(unfit, NoPlace)
    assert "QOS gpu allows at most 4 GPUs" in unfit.reason
    assert "gpus" in unfit.keys


def test_gpus_that_others_may_use_are_not_idle() -> None:
    found = placed("cirrus-legacy", gpus=1)
    assert (
        idle_notes(PROFILES["cirrus-legacy"], [(found, asked(gpus=1)), (placed("cirrus"), asked())], trains=True) == []
    )


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"gpus": 4}, "cells with 4 GPUs learn on 1 of them, one for each rank; 3 are idle: with a `parallelism` each GPU has a rank"),
        ({"gpus": 4, "tasks": 3, "parallelism": "native"}, "cells with 4 GPUs learn on 3 of them, one for each rank; 1 is idle: with a "
         "`parallelism` each GPU has a rank"),
        ({"gpus": 4, "tasks": 4, "parallelism": "horovod"}, None),
        ({"gpus": 2, "tasks": 4, "parallelism": "horovod"}, None),
        ({"gpus": 1, "tasks": 3}, None),  # a learner and its actors
    ],
)  # fmt: skip
def test_ranks_that_learn_may_be_fewer_than_gpus(wanted: dict[str, Any], told: str | None) -> None:
    found = placed("sol", **wanted)
    assert idle_notes(PROFILES["sol"], [(found, asked(**wanted))], trains=True) == ([told] if told else [])
    assert idle_notes(PROFILES["sol"], [(found, asked(**wanted))], trains=False) == []  # a command may use them all


def test_what_partition_and_qos_of_a_site_really_allow() -> None:
    assert (
        "QOS standard allows at most 2-00:00:00"
        in refused("cirrus", Pin(partition="highmem"), time="3-00:00:00").reason
    )
    assert "does not take QOS long" in refused("cirrus", Pin(partition="highmem", qos="long")).reason
    # The 14 days of Sol's QOS `long` count instead of the partition's seven.
    assert placed("sol", Pin(partition="public", qos="long"), time="10-00:00:00").qos == "long"
    assert (
        "QOS long allows at most 14-00:00:00"
        in refused("sol", Pin(partition="public", qos="long"), time="15-00:00:00").reason
    )
    assert (
        "the maximum of partition public is 7-00:00:00"
        in refused("sol", Pin(partition="public"), time="10-00:00:00").reason
    )


def test_memory_that_comes_with_cores_is_the_least_that_a_node_may_bring() -> None:
    # The partition `standard` holds nodes with 2666 and with 5333 MiB a core.
    assert placed("cirrus", memory="8G").node_types == ("standard", "highmem")
    assert placed("cirrus", Pin(partition="highmem"), memory="8G").cpus_per_task == 2
    assert placed("cirrus", nodes=600, cpus=288, memory="600G", time="1-00:00:00").qos == "largescale"


ARM = Pin(partition="arm")


def test_environments_are_built_for_the_nodes_that_use_them() -> None:
    found = refused("sol", ARM, gpus=1, gpu_type="gh200")
    assert found.reason == (
        "gracehopper nodes are aarch64, but software environments are built on x86_64 (partition lightwork) and would "
        "not run there: name another environments.build_partition in your own profile"
    )
    unpinned = refused("sol", gpus=1, gpu_type="gh200")
    assert "which only partition arm has: name it in the study's `placement`" in unpinned.reason


def test_a_charge_that_is_not_known_is_not_made_up() -> None:
    sites = PROFILES["sol"].environments.model_copy(update={"build_partition": "arm"})
    profile = PROFILES["sol"].model_copy(update={"environments": sites})
    found = placed(profile, ARM, gpus=1, gpu_type="gh200")
    assert cost(profile, found, asked(gpus=1, gpu_type="gh200")).billed is None
    assert notes(profile, [found]) == [
        "the charge of sol for cells with gh200 is not known: they are not in the sum of CHE"
    ]
    a100 = placed("sol", gpus=1, gpu_type="a100")
    assert cost(PROFILES["sol"], a100, asked(gpus=1, gpu_type="a100")).billed == 27


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
        (
            "sol",
            {"gpus": 1, "gpu_type": "h100"},
            "but Arizona State University, Sol has only a100, a30, gh200",
            "gpu_type: a100",
        ),
        ("sol", {"gpus": 8, "gpu_type": "a100"}, "8 GPUs per node, but gpu-a100 nodes have 4", "gpus: 4"),
        ("sol", {"time": "30-00:00:00"}, "asks for 30-00:00:00", "time: 7-00:00:00"),
        ("sol", {"memory": "3T"}, "asks for 3072G per node, but standard nodes have 512G", "memory: 2048G"),
        ("cirrus", {"cpus": 300}, "standard nodes have 288", "cpus: 288"),
        ("cirrus", {"nodes": 1000}, "asks for 1000 nodes", "nodes: "),
        ("sol", {"tasks": 200, "parallelism": "horovod"}, "asks for 200 cores per node", "overcommit: true"),
        ("cirrus-legacy", {"gpus": 3}, "accepts 1, 2, 4 (`exclusive: true` asks for whole nodes", "gpus: 2"),
        ("cirrus-legacy", {"gpus": 4, "nodes": 2}, "request all 4 GPUs of each, or set `exclusive: true`", "nodes: 1"),
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
    with pytest.raises(UsageError, match="the site requires an account: give --account"):
        options("cirrus", account=None)


def test_a_forbidden_flag_that_a_cell_needs() -> None:
    profile = PROFILES["sol"].model_copy(update={"forbidden_flags": {"gres": "TACC refuses it"}})
    with pytest.raises(UsageError, match=r"the site forbids --gres \(TACC refuses it\), but this cell needs it"):
        options(profile, gpus=1, gpu_type="a100")
