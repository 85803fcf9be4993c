from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hpcrl.private_slurm.config import (
    Layout,
    Node,
    cgroup_conf,
    description,
    job_submit_lua,
    limit_commands,
    missing_limits,
    node_names,
    slurm_conf,
)
from hpcrl.private_slurm.setup import write_files
from hpcrl.spec.cluster import ClusterProfile, Qos, Scheduler
from hpcrl.spec.library import Library

SOL = Library().cluster("sol")


def layout(profile: ClusterProfile, **changes: Any) -> Layout:
    nodes = tuple(Node(name, kind, 7000 + index) for index, (name, kind) in enumerate(node_names(profile)))
    return Layout(Path("/d"), "host", "me", 1, 2, nodes, **changes)


def settings(profile: ClusterProfile, **changes: Any) -> dict[str, str]:
    text = slurm_conf(profile, layout(profile, **changes))
    return dict(line.split("=", 1) for line in text.splitlines() if " " not in line)


def with_scheduler(**changes: Any) -> ClusterProfile:
    return SOL.model_copy(update={"scheduler": SOL.scheduler.model_copy(update=changes)})


def test_the_controller_is_set_as_the_sites() -> None:
    found = settings(SOL)
    expected = {
        "MaxJobCount": "500000", "MaxArraySize": "200000", "PreemptMode": "CANCEL", "PreemptExemptTime": "00:15:00",
    }  # fmt: skip
    assert expected.items() <= found.items()
    assert "AccountingStoreFlags" not in found
    kept = settings(with_scheduler(accounting_store_flags=("job_comment", "job_script")))
    assert kept["AccountingStoreFlags"] == "job_comment,job_script"


def test_what_a_profile_does_not_say() -> None:
    plain = SOL.model_copy(update={"scheduler": Scheduler(max_array_size=100_001)})
    found = settings(plain)
    assert int(found["MaxJobCount"]) > 100_001
    assert "PreemptExemptTime" not in found
    assert "REQUEUE (the profile does not say)" in "\n".join(description(plain, layout(plain)))


def test_memory_is_enforced_in_one_of_three_ways() -> None:
    groups, stand_in, none = (settings(SOL, memory=kind) for kind in ("control groups", "stand-in", "none"))
    assert (groups["ProctrackType"], groups["TaskPlugin"]) == ("proctrack/cgroup", "task/cgroup")
    assert "JobAcctGatherParams" not in groups
    assert stand_in["ProctrackType"] == none["ProctrackType"] == "proctrack/linuxproc"
    assert stand_in["JobAcctGatherParams"] == "OverMemoryKill"
    assert "JobAcctGatherParams" not in none
    assert "ConstrainRAMSpace=yes" in cgroup_conf(layout(SOL, memory="control groups"))
    assert "ConstrainRAMSpace" not in cgroup_conf(layout(SOL))
    said = ["\n".join(description(SOL, layout(SOL, memory=kind))) for kind in ("control groups", "stand-in", "none")]
    assert "within seconds, without control groups" in said[1]
    assert "is not killed, although the site kills it" in said[2]
    assert len(set(said)) == 3


def test_two_clusters_have_control_groups_of_their_own() -> None:
    first, second = (Layout(Path(name), "host", "me", 1, 2, ()) for name in ("/tmp/a", "/tmp/b"))
    assert first.group != second.group


QOS = {
    "all": Qos.model_validate(
        {
            "max_time": "1-00:00:00", "min_nodes": 2, "max_nodes": 4, "max_cores": 32, "max_gpus": 4,
            "max_memory": "320G", "max_running": 2, "max_queued": 10, "charge_factor": 1.5,
        }
    ),
    "none": Qos(),
    "low": Qos(preemptable=True),
}  # fmt: skip
# As sacctmgr 22.05 shows it after `limit_commands`.
SHOWN = """normal||||||||1.000000
all|1-00:00:00|cpu=32,gres/gpu=4,mem=320G,node=4|node=2|2|10|DenyOnLimit|low|1.500000
none|||||||low|1.000000
low||||||||1.000000
"""


def test_every_limit_of_a_qos_is_set() -> None:
    profile = SOL.model_copy(update={"qos": QOS})
    assert limit_commands(profile).splitlines() == [
        "modify qos all set MaxWall=1-00:00:00 MaxTRESPerJob=cpu=32,gres/gpu=4,mem=327680M,node=4 "
        "MinTRESPerJob=node=2 MaxJobsPerUser=2 MaxSubmitJobsPerUser=10 Flags=DenyOnLimit Preempt=low "
        "UsageFactor=1.500000",
        "modify qos none set Preempt=low",
        "quit",
    ]
    assert missing_limits(profile, SHOWN) == []


@pytest.mark.parametrize(
    ("old", "new", "missing"),
    [
        ("gres/gpu=4,", "", "QOS all: MaxTRES: expected cpu=32,gres/gpu=4,mem=327680M,node=4, got cpu=32,mem=320G"),
        ("mem=320G", "mem=32G", "QOS all: MaxTRES"),
        ("|10|", "||", "QOS all: MaxSubmitPU: expected 10, got no value"),
        ("|DenyOnLimit|", "||", "QOS all: Flags: expected DenyOnLimit, got no value"),
        ("none|||||||low|", "none||||||||", "QOS none: Preempt: expected low, got no value"),
        ("1.5", "1.0", "QOS all: UsageFactor"),
        ("low||", "other||", "QOS low is missing"),
    ],
)
def test_a_limit_that_was_not_taken_is_named(old: str, new: str, missing: str) -> None:
    assert old in SHOWN
    (found,) = missing_limits(SOL.model_copy(update={"qos": QOS}), SHOWN.replace(old, new))
    assert found.startswith(missing)


def test_a_node_has_no_feature_that_the_profile_does_not_give_it() -> None:
    lines = {line.split()[0]: line for line in slurm_conf(SOL, layout(SOL)).splitlines() if line.startswith("NodeName")}
    assert "Feature=" not in lines["NodeName=standard-1"]
    assert " Feature=a100_80 " in lines["NodeName=gpu-a100-1"]
    named = SOL.node_types["standard"].model_copy(update={"constraint": "epyc"})
    profile = SOL.model_copy(update={"node_types": {**SOL.node_types, "standard": named}, "gpu_request": "constraint"})
    text = slurm_conf(profile, layout(profile))
    assert re.search(r"NodeName=standard-1 .* Feature=epyc\n", text)
    assert re.search(r"NodeName=gpu-a30-1 .* Feature=gpu Gres", text)


def test_a_site_s_submission_plugin() -> None:
    assert job_submit_lua(SOL.model_copy(update={"partitions": {}}), layout(SOL)) is None
    odd = SOL.model_copy(update={"forbidden_flags": {"mem": 'a "b" \\'}})
    assert 'here: a \\"b\\" \\\\")' in str(job_submit_lua(odd, layout(odd)))
    assert settings(SOL, submission_plugin=True)["JobSubmitPlugins"] == "lua"
    assert "JobSubmitPlugins" not in settings(SOL)


def test_the_numbers_of_jobs_begin_elsewhere_each_time(tmp_path: Path) -> None:
    """A plan that is submitted to two private Slurms one after the other has records of both."""
    first = [write_files(tmp_path / "s", SOL, "none").first_job for _ in range(5)]
    assert len(set(first)) == 5
    assert f"FirstJobId={first[-1]}\n" in (tmp_path / "s/etc/slurm.conf").read_text()


def test_no_port_is_one_that_an_outgoing_connection_may_take(tmp_path: Path) -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    made = [write_files(tmp_path / str(number), SOL, "none") for number in range(3)]
    ports = [
        port for each in made for port in (each.controller_port, each.database_port, *(n.port for n in each.nodes))
    ]
    assert max(ports) < lowest or lowest < 20_000
    assert len({made[0].controller_port, made[0].database_port, *(node.port for node in made[0].nodes)}) == 2 + len(
        made[0].nodes
    )
