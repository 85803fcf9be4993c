"""slurm.conf and its companions for a private cluster, generated from a cluster profile.

Partitions, QOS, gres names, node sizes and limits are the profile's. Counts of nodes are cut, sizes are declared,
not physical, and GPUs are simulated: the scheduler is real, the hardware is not.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hpcrl.spec.cluster import ClusterProfile, GpuRequest
from hpcrl.spec.quantities import format_time

NODES_PER_TYPE = 2
ACCOUNT = "lab"
# The controllers that Slurm's control-group plugins need here: the freezer groups a job's processes, memory limits them.
CONTROLLERS = ("freezer", "memory")
# How a job that exceeds its memory is killed: by the kernel; by Slurm's polling, with accounting corrected afterwards; not at all.
Enforcement = Literal["control groups", "stand-in", "none"]


@dataclass(frozen=True)
class Node:
    name: str
    node_type: str
    port: int


@dataclass(frozen=True)
class Layout:
    """Directory, host, user, ports and nodes of a private cluster, and the number of its first job."""

    directory: Path
    host: str
    user: str
    controller_port: int
    database_port: int
    nodes: tuple[Node, ...]
    memory: Enforcement = "none"
    submission_plugin: bool = False
    first_job: int = 1

    @property
    def group(self) -> str:
        """The name of this cluster's own control group: two clusters have nodes of the same names."""
        return "hpcrl-" + hashlib.sha256(str(self.directory).encode()).hexdigest()[:10]


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
    site = profile.scheduler
    by_groups = layout.memory == "control groups"
    lines = [
        f"ClusterName={profile.name}",
        f"SlurmctldHost={layout.host}(127.0.0.1)",
        f"SlurmctldPort={layout.controller_port}",
        "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny",
        f"SlurmUser={layout.user}",
        f"SlurmdUser={layout.user}",
        "AuthType=auth/munge",
        "CredType=cred/munge",
        # Without cred_expire a requeued job waits for two minutes.
        f"AuthInfo=socket={root}/run/munge.sock,cred_expire=5",
        # Where the profile's srun names none, the site's default starts MPI programs.
        f"MpiDefault={'none' if profile.launch.mpi else 'pmix'}",
        f"ProctrackType=proctrack/{'cgroup' if by_groups else 'linuxproc'}",
        f"TaskPlugin=task/{'cgroup' if by_groups else 'none'}",
        "ReturnToService=2",
        # Stricter than many sites: a script that could never start is refused at once.
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
        f"PreemptMode={site.preempt_mode or 'REQUEUE'}",
        "JobRequeue=1",
        f"MaxArraySize={site.max_array_size}",
        f"MaxJobCount={site.max_job_count or max(50_000, site.max_array_size + 1)}",
        f"FirstJobId={layout.first_job}",
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
    ]
    if site.preempt_exempt_time:
        lines.append(f"PreemptExemptTime={format_time(site.preempt_exempt_time)}")
    if site.accounting_store_flags:
        lines.append(f"AccountingStoreFlags={','.join(site.accounting_store_flags)}")
    if layout.submission_plugin:
        lines.append("JobSubmitPlugins=lua")
    if layout.memory == "stand-in":
        lines.append("JobAcctGatherParams=OverMemoryKill")
        lines.append(f"EpilogSlurmctld={root}/etc/over-memory.sh")
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
        if partition.max_nodes:
            line += f" MaxNodes={partition.max_nodes}"
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
    asked_for = [kind.constraint] if kind.constraint else []
    if kind.gpus and profile.gpu_request == GpuRequest.CONSTRAINT:
        asked_for.append("gpu")
    features = ",".join(dict.fromkeys([*kind.features, *asked_for]))
    line += f" Feature={features}" if features else ""
    if kind.gpus:
        line += f" Gres=gpu:{kind.gpus.type}:{kind.gpus.count}"
    return line


def job_submit_lua(profile: ClusterProfile, layout: Layout) -> str | None:
    """Return the text of job_submit.lua: the rules of the site's submission plugin that a profile can express.

    None if the profile has none.
    """
    gpu_nodes = [node.name for node in layout.nodes if profile.node_types[node.node_type].gpus]
    keeping_off = [name for name, partition in profile.partitions.items() if partition.excludes_gpu_nodes]
    body = []
    if "mem" in profile.forbidden_flags:
        body.append(
            f"""    if job.min_mem_per_node ~= nil or job.min_mem_per_cpu ~= nil then
        slurm.log_user("--mem is forbidden here: {_lua(profile.forbidden_flags["mem"])}")
        return slurm.ERROR
    end"""
        )
    if gpu_nodes and keeping_off:
        names = ", ".join(f'["{name}"] = true' for name in keeping_off)
        body.append(
            f"""    local keeping_off = {{{names}}}
    local asks = job.tres_per_job or job.tres_per_node or job.tres_per_socket or job.tres_per_task
    if keeping_off[job.partition] and asks == nil then
        local gpu_nodes = "{",".join(gpu_nodes)}"
        job.exc_nodes = job.exc_nodes and (job.exc_nodes .. "," .. gpu_nodes) or gpu_nodes
    end"""
        )
    if not body:
        return None
    lines = ["function slurm_job_submit(job, partitions, user)", *body, "    return slurm.SUCCESS", "end"]
    lines += ["function slurm_job_modify(job, record, partitions, user)", "    return slurm.SUCCESS", "end"]
    return "\n".join(lines) + "\n"


def _lua(text: str) -> str:
    """Return a text escaped for double quotes in Lua."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


def gres_conf(profile: ClusterProfile, layout: Layout) -> str:
    """Return the text of gres.conf; each GPU is a link to /dev/null, which Slurm accepts as a device."""
    lines = []
    for node in layout.nodes:
        gpus = profile.node_types[node.node_type].gpus
        if gpus:
            files = f"nvidia[0-{gpus.count - 1}]" if gpus.count > 1 else "nvidia0"
            lines.append(f"NodeName={node.name} Name=gpu Type={gpus.type} File={layout.directory}/dev/{files}")
    return "\n".join(lines) + "\n"


def cgroup_conf(layout: Layout) -> str:
    """Return the text of cgroup.conf. slurmd requires a version even if no control group is used."""
    lines = ["CgroupPlugin=cgroup/v1", "CgroupAutomount=no"]
    if layout.memory == "control groups":
        lines += [
            f"CgroupMountpoint={layout.directory}/cgroup",
            "ConstrainRAMSpace=yes",
            "ConstrainCores=no",
            "ConstrainDevices=no",
            "AllowedSwapSpace=0",
            "MinRAMSpace=10",
        ]
    return "\n".join(lines) + "\n"


def over_memory_script(profile: ClusterProfile, layout: Layout) -> str:
    """Return the script that corrects accounting after Slurm's polling killed a job that exceeded its memory.

    Slurm then says FAILED or CANCELLED. The script looks for slurmd's message about it, waits until the job's end
    is in the database, and writes OUT_OF_MEMORY (state 11, exit code 0:125) there: for the step that was over
    its memory, and for the job if that step was the batch script. Control groups give the same result.
    """
    root = layout.directory
    jobs, steps = (f"\\`{profile.name}_{table}_table\\`" for table in ("job", "step"))
    return f"""#!/bin/sh
said="StepId=$SLURM_JOB_ID\\..*exceeded memory limit"
begun={root}/tmp/over-memory.$SLURM_JOB_ID
if [ "$1" != mend ]; then
    grep -q "$said" {root}/log/slurmd.*.log || exit 0
    # slurmctld ends this script's process group with it: wait until the other one has left the group.
    setsid --fork "$0" mend >/dev/null 2>&1 </dev/null
    until [ -e "$begun" ]; do sleep 0.05; done
    exit 0
fi
sql() {{ mariadb --no-defaults --socket={root}/run/mysql.sock -uroot -N -e "$1" slurm_acct_db; }}
ended="id_job=$SLURM_JOB_ID and time_end>0 order by job_db_inx desc limit 1"
touch "$begun"
left=60
while [ "$left" -gt 0 ]; do
    left=$((left - 1))
    sleep 1
    number=$(sql "select job_db_inx from {jobs} where $ended") || exit 0
    [ -n "$number" ] || continue
    sql "update {steps} set state=11, exit_code=253 where job_db_inx=$number and state=4 and exit_code=9"
    if grep -q "StepId=$SLURM_JOB_ID\\.batch exceeded memory limit" {root}/log/slurmd.*.log; then
        sql "update {jobs} set state=11, exit_code=253 where job_db_inx=$number"
    fi
    # slurmdbd may write the same end once more.
    [ "$left" -lt 10 ] || left=10
done
"""


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
    """Return the task prolog: each node on this shared host gets its own temporary directory."""
    temporary = f"{layout.directory}/tmpfs/$SLURMD_NODENAME"
    return (
        f'#!/bin/sh\necho "export TMPDIR={temporary}"\necho "export OMPI_MCA_btl_vader_backing_directory={temporary}"\n'
    )


def accounting_commands(profile: ClusterProfile, user: str) -> str:
    """Return sacctmgr's input before the controller starts: the cluster, its QOS, one account and the user in it."""
    lines = [f"add cluster {profile.name}"]
    if profile.qos:
        lines.append(f"add qos {','.join(profile.qos)}")
    lines.append(f"add account {ACCOUNT} Description={ACCOUNT} Organization=hpcrl")
    names = ",".join(["normal", *profile.qos])
    line = (
        f"add user {user} Account={ACCOUNT} DefaultAccount={ACCOUNT} QOS={names} "
        f"DefaultQOS={next(iter(profile.qos), 'normal')}"
    )
    if profile.scheduler.max_submitted:
        line += f" MaxSubmitJobs={profile.scheduler.max_submitted}"
    return "\n".join([*lines, line, "quit"]) + "\n"


def qos_limits(profile: ClusterProfile) -> dict[str, dict[str, str]]:
    """Return QOS -> {limit: value}, in the words and values of `sacctmgr show qos`."""
    preemptable = [name for name, qos in profile.qos.items() if qos.preemptable]
    limits = {}
    for name, qos in profile.qos.items():
        wanted: dict[str, str] = {}
        if qos.max_time:
            wanted["MaxWall"] = format_time(qos.max_time)
        most = [("cpu", qos.max_cores), ("gres/gpu", qos.max_gpus), ("mem", qos.max_memory), ("node", qos.max_nodes)]
        tres = [f"{kind}={value}{'M' if kind == 'mem' else ''}" for kind, value in most if value]
        if tres:
            wanted["MaxTRES"] = ",".join(tres)
        if qos.min_nodes > 1:
            wanted["MinTRES"] = f"node={qos.min_nodes}"
        if qos.max_running:
            wanted["MaxJobsPU"] = str(qos.max_running)
        if qos.max_queued:
            wanted["MaxSubmitPU"] = str(qos.max_queued)
        if qos.overrides_partition_time:
            wanted["Flags"] = "DenyOnLimit,PartitionTimeLimit"
        elif wanted:
            # Without this flag Slurm accepts a job over MaxWall and never starts it.
            wanted["Flags"] = "DenyOnLimit"
        if preemptable and not qos.preemptable:
            wanted["Preempt"] = ",".join(preemptable)
        if qos.charge_factor != 1:
            wanted["UsageFactor"] = f"{qos.charge_factor:.6f}"
        limits[name] = wanted
    return limits


# The columns of `sacctmgr show qos` and the words of `sacctmgr modify qos`.
QOS_WORDS = {
    "MaxWall": "MaxWall",
    "MaxTRES": "MaxTRESPerJob",
    "MinTRES": "MinTRESPerJob",
    "MaxJobsPU": "MaxJobsPerUser",
    "MaxSubmitPU": "MaxSubmitJobsPerUser",
    "Flags": "Flags",
    "Preempt": "Preempt",
    "UsageFactor": "UsageFactor",
}


def limit_commands(profile: ClusterProfile) -> str:
    """Return sacctmgr's input after the controller has started, because gres/gpu is known only then."""
    lines = []
    for name, limits in qos_limits(profile).items():
        if limits:
            settings = " ".join(f"{QOS_WORDS[column]}={value}" for column, value in limits.items())
            lines.append(f"modify qos {name} set {settings}")
    return "\n".join([*lines, "quit"]) + "\n"


def missing_limits(profile: ClusterProfile, shown: str) -> list[str]:
    """Return each limit that is not as the profile says, read from ``sacctmgr -nP show qos format=Name,...``."""
    rows = {}
    for line in shown.splitlines():
        name, *values = line.split("|")
        rows[name] = dict(zip(QOS_WORDS, values, strict=False))
    missing = []
    for name, limits in qos_limits(profile).items():
        if name not in rows:
            missing.append(f"QOS {name} is missing")
            continue
        for column, value in limits.items():
            actual = rows[name].get(column, "")
            if _comparable(actual) != _comparable(value):
                missing.append(f"QOS {name}: {column}: expected {value}, got {actual or 'no value'}")
    return missing


def _comparable(text: str) -> set[str]:
    """Read a list of any order; sacctmgr may write memory in another unit, and a number with fewer digits."""
    parts = set()
    for part in text.split(","):
        key, _, value = part.rpartition("=")
        if key == "mem" and value[-1:] in "MGT":
            value = f"{float(value[:-1]) * {'M': 1, 'G': 1024, 'T': 1024**2}[value[-1]]:g}"
        elif value.replace(".", "", 1).isdigit():
            value = f"{float(value):g}"
        parts.add(f"{key}={value}")
    return parts


def description(profile: ClusterProfile, layout: Layout) -> list[str]:
    """Say what this cluster has of a site, what is simulated, and what is missing."""
    site = profile.scheduler
    memory = {
        "control groups": "a job that exceeds its memory is killed by control groups, with state OUT_OF_MEMORY",
        "stand-in": "a job that exceeds its memory is killed within seconds, without control groups: "
        "sacct says OUT_OF_MEMORY, squeue FAILED or CANCELLED, and a short peak is missed",
        "none": "a job that exceeds its memory is not killed"
        + (", although the site kills it" if site.enforce_memory else ""),
    }[layout.memory]
    kept = ", ".join(site.accounting_store_flags) or "no comments, scripts or variables of jobs"
    part_limits = (
        ""
        if site.enforce_part_limits
        else "; sbatch refuses a job over a partition's limits, but the site's sbatch does not"
    )
    rules = "rules of the site's submission plugin"
    if layout.submission_plugin:
        rules = "rules of the site's submission plugin, except those on memory and GPU nodes"
    return [
        "real: slurmctld, slurmdbd, slurmd and the commands; "
        f"{len(profile.partitions)} partitions with their time, nodes and QOS; every limit of {len(profile.qos)} QOS, read back",
        (f"Slurm of this host; the site's is {site.version}; " if site.version else "")
        + f"as at the site: MaxArraySize {site.max_array_size}, "
        + (f"MaxJobCount {site.max_job_count}, " if site.max_job_count else "")
        + f"PreemptMode {site.preempt_mode or 'REQUEUE (the profile does not say)'}, accounting keeps {kept}",
        f"simulated: {len(layout.nodes)} nodes on this host, of declared size; GPUs are links to /dev/null",
        f"memory: {memory}",
        f"missing: {rules}, fair share, other users, modules, file systems{part_limits}",
    ]
