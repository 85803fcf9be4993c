"""slurm.conf and its companions for a private cluster, generated from a cluster profile.

Partitions, QOS, gres names, node sizes and limits are the profile's. Counts of nodes are cut, sizes are declared,
not physical, and GPUs are stand-ins: the scheduler is real, the hardware is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpcrl.spec.cluster import ClusterProfile
from hpcrl.spec.quantities import format_time

NODES_PER_TYPE = 2
ACCOUNT = "lab"


@dataclass(frozen=True)
class Node:
    name: str
    node_type: str
    port: int


@dataclass(frozen=True)
class Layout:
    """Where a private cluster lives: its directory, host, user, ports and nodes."""

    directory: Path
    host: str
    user: str
    controller_port: int
    database_port: int
    nodes: tuple[Node, ...]


def node_names(profile: ClusterProfile, per_type: int = NODES_PER_TYPE) -> list[tuple[str, str]]:
    """Return (name, node type) of each node to start."""
    names = []
    for kind, node in profile.node_types.items():
        names += [(f"{kind}-{index}", kind) for index in range(1, min(node.count or per_type, per_type) + 1)]
    return names


def slurm_conf(profile: ClusterProfile, layout: Layout) -> str:
    """Return the text of slurm.conf."""
    root = layout.directory
    gpus = profile.gpu_types()
    lines = [
        f"ClusterName={profile.name}",
        f"SlurmctldHost={layout.host}(127.0.0.1)",
        f"SlurmctldPort={layout.controller_port}",
        f"SlurmUser={layout.user}",
        f"SlurmdUser={layout.user}",
        "AuthType=auth/munge",
        "CredType=cred/munge",
        # Without cred_expire a requeued job waits for two minutes.
        f"AuthInfo=socket={root}/run/munge.sock,cred_expire=5",
        "MpiDefault=none",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "ReturnToService=2",
        # Stricter than many sites, so that a script that could never start is refused at once.
        "EnforcePartLimits=ALL",
        f"TmpFS={root}/tmpfs/%n",
        f"TaskProlog={root}/etc/taskprolog.sh",
        f"SlurmctldPidFile={root}/run/slurmctld.pid",
        f"SlurmdPidFile={root}/run/slurmd.%n.pid",
        f"SlurmdSpoolDir={root}/spool/%n",
        f"StateSaveLocation={root}/state",
        f"SlurmctldLogFile={root}/log/slurmctld.log",
        f"SlurmdLogFile={root}/log/slurmd.%n.log",
        "SlurmdParameters=config_overrides",
        "SwitchType=switch/none",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=bf_interval=1,sched_interval=2,sched_min_interval=0,batch_sched_delay=0,sched_max_job_start=0",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "PriorityType=priority/basic",
        "PreemptType=preempt/qos",
        "PreemptMode=REQUEUE",
        "JobRequeue=1",
        f"MaxArraySize={profile.scheduler.max_array_size}",
        "MaxJobCount=50000",
        "MinJobAge=300",
        "SlurmctldTimeout=30",
        "SlurmdTimeout=10",
        "InactiveLimit=0",
        "KillWait=5",
        "TCPTimeout=2",
        "MessageTimeout=10",
        "JobAcctGatherType=jobacct_gather/linux",
        "JobAcctGatherFrequency=task=1",
        "JobCompType=jobcomp/none",
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=127.0.0.1",
        f"AccountingStoragePort={layout.database_port}",
        f"AccountingStoragePass={root}/run/munge.sock",
        "AccountingStorageEnforce=associations,limits,qos",
        "AccountingStoreFlags=job_comment",
    ]
    if gpus:
        lines.append("GresTypes=gpu")
        lines.append("AccountingStorageTRES=" + ",".join(["gres/gpu", *(f"gres/gpu:{kind}" for kind in gpus)]))
    for node in layout.nodes:
        lines.append(_node_line(profile, layout, node))
    for name, partition in profile.partitions.items():
        nodes = ",".join(node.name for node in layout.nodes if node.node_type in partition.node_types)
        line = f"PartitionName={name} Nodes={nodes} MaxTime={format_time(partition.max_time)} State=UP"
        line += f" DefaultTime={format_time(min(partition.max_time, 3600))}"
        if partition.default:
            line += " Default=YES"
        if partition.qos:
            line += f" AllowQos={','.join(partition.qos)}"
        if partition.max_cores_per_node:
            line += f" MaxCPUsPerNode={partition.max_cores_per_node}"
        per_core = [profile.memory.per_core[kind] for kind in partition.node_types if kind in profile.memory.per_core]
        if per_core:
            line += f" DefMemPerCPU={min(per_core)}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def _node_line(profile: ClusterProfile, layout: Layout, node: Node) -> str:
    kind = profile.node_types[node.node_type]
    sockets = 2 if kind.usable_cores % 2 == 0 else 1
    line = (
        f"NodeName={node.name} NodeHostname={layout.host} NodeAddr=127.0.0.1 Port={node.port} CPUs={kind.usable_cores} Boards=1 "
        f"SocketsPerBoard={sockets} CoresPerSocket={kind.usable_cores // sockets} ThreadsPerCore=1 RealMemory={kind.memory} State=UNKNOWN"
    )
    features = ",".join([node.node_type, *kind.features])
    line += f" Feature={features}"
    if kind.gpus:
        line += f" Gres=gpu:{kind.gpus.type}:{kind.gpus.count}"
    return line


def gres_conf(profile: ClusterProfile, layout: Layout) -> str:
    """Return the text of gres.conf; each GPU is a link to /dev/null, which Slurm takes for a device."""
    lines = []
    for node in layout.nodes:
        gpus = profile.node_types[node.node_type].gpus
        if gpus:
            files = f"nvidia[0-{gpus.count - 1}]" if gpus.count > 1 else "nvidia0"
            lines.append(f"NodeName={node.name} Name=gpu Type={gpus.type} File={layout.directory}/dev/{files}")
    return "\n".join(lines) + "\n"


def cgroup_conf() -> str:
    """Return the text of cgroup.conf. Nothing here uses control groups, but slurmd looks for them unless a version is named."""
    return "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"


def slurmdbd_conf(layout: Layout) -> str:
    """Return the text of slurmdbd.conf."""
    root = layout.directory
    lines = [
        "AuthType=auth/munge",
        f"AuthInfo=socket={root}/run/munge.sock",
        f"DbdHost={layout.host}",
        "DbdAddr=127.0.0.1",
        f"DbdPort={layout.database_port}",
        f"SlurmUser={layout.user}",
        f"LogFile={root}/log/slurmdbd.log",
        f"PidFile={root}/run/slurmdbd.pid",
        "StorageType=accounting_storage/mysql",
        "StorageHost=localhost",
        f"StorageUser={layout.user}",
        "StorageLoc=slurm_acct_db",
    ]
    return "\n".join(lines) + "\n"


def task_prolog(layout: Layout) -> str:
    """Return the task prolog: nodes that share one host each get a temporary directory of their own."""
    temporary = f"{layout.directory}/tmpfs/$SLURMD_NODENAME"
    return (
        f'#!/bin/sh\necho "export TMPDIR={temporary}"\necho "export OMPI_MCA_btl_vader_backing_directory={temporary}"\n'
    )


def accounting_commands(profile: ClusterProfile, user: str) -> str:
    """Return sacctmgr's input: the cluster, its QOS with their limits, one account and the user in it."""
    lines = [f"add cluster {profile.name}"]
    if profile.qos:
        lines.append(f"add qos {','.join(profile.qos)}")
    for name, qos in profile.qos.items():
        settings = []
        if qos.max_time:
            settings.append(f"MaxWall={format_time(qos.max_time)}")
        most = [("cpu", qos.max_cores), ("gres/gpu", qos.max_gpus), ("node", qos.max_nodes)]
        tres = [f"{kind}={value}" for kind, value in most if value]
        if tres:
            settings.append(f"MaxTRESPerJob={','.join(tres)}")
        if qos.min_nodes > 1:
            settings.append(f"MinTRESPerJob=node={qos.min_nodes}")
        if qos.max_running:
            settings.append(f"MaxJobsPerUser={qos.max_running}")
        if settings:
            lines.append(f"modify qos {name} set {' '.join(settings)} Flags=DenyOnLimit")
    lines.append(f"add account {ACCOUNT} Description={ACCOUNT} Organization=hpcrl")
    names = ",".join(["normal", *profile.qos])
    lines.append(
        f"add user {user} Account={ACCOUNT} DefaultAccount={ACCOUNT} QOS={names} DefaultQOS={next(iter(profile.qos), 'normal')}"
    )
    return "\n".join([*lines, "quit"]) + "\n"
