"""The directory of a private Slurm: the files that its daemons read, and the control groups of its jobs."""

from __future__ import annotations

import errno
import getpass
import json
import os
import random
import secrets
import shutil
import socket
import time
from dataclasses import replace
from pathlib import Path

from hpcrl.errors import UsageError
from hpcrl.formats.files import private
from hpcrl.private_slurm.config import (
    CONTROLLERS,
    Enforcement,
    Layout,
    Node,
    cgroup_conf,
    gres_conf,
    job_submit_lua,
    node_names,
    over_memory_script,
    slurm_conf,
    slurmdbd_conf,
    task_prolog,
)
from hpcrl.spec.cluster import ClusterProfile

CONTROL_GROUPS = Path("/sys/fs/cgroup")
STATE = "cluster.json"
# Slurm numbers jobs up to 67,043,327 and then begins again.
_MOST_FIRST_JOB = 60_000_000
_FIRST_PORT = 10_000
_FOLDERS = ("etc", "run", "log", "state", "spool", "db", "dev", "tmpfs", "tmp")


def write_files(root: Path, profile: ClusterProfile, memory: Enforcement) -> Layout:
    """Make the directory of a private Slurm anew, with the files of its daemons; return what they say.

    Raises:
        UsageError: the directory contains something else.
    """
    if root.exists() and any(root.iterdir()) and not (root / STATE).exists():
        raise UsageError(f"{root}: is not empty: choose an empty directory")
    shutil.rmtree(root, ignore_errors=True)
    # The database has no passwords, and its clients can write files as its user: nobody else may enter.
    root.mkdir(parents=True, mode=0o700, exist_ok=True)
    root.chmod(0o700)
    for name in _FOLDERS:
        (root / name).mkdir()
    names = node_names(profile)
    ports = _free_ports(len(names) + 2)
    nodes = tuple(Node(name, kind, port) for (name, kind), port in zip(names, ports[2:], strict=True))
    host = socket.gethostname().partition(".")[0]
    # Not where an earlier one began: records have the numbers of their jobs in their names.
    first_job = 1 + secrets.randbelow(_MOST_FIRST_JOB)
    layout = Layout(root, host, getpass.getuser(), ports[0], ports[1], nodes, memory, first_job=first_job)
    plugin = job_submit_lua(profile, layout) if _plugin("job_submit_lua") else None
    if plugin:
        layout = replace(layout, submission_plugin=True)
        (root / "etc/job_submit.lua").write_text(plugin)
    for node in nodes:
        (root / "spool" / node.name).mkdir()
        (root / "tmpfs" / node.name).mkdir()
    for index in range(
        max((node_type.gpus.count for node_type in profile.node_types.values() if node_type.gpus), default=0)
    ):
        (root / f"dev/nvidia{index}").symlink_to("/dev/null")
    key = root / "etc/munge.key"
    with open(key, "wb", opener=private) as file:
        file.write(os.urandom(128))
    (root / "etc/slurm.conf").write_text(slurm_conf(profile, layout))
    (root / "etc/cgroup.conf").write_text(cgroup_conf(layout))
    if memory == "control groups":
        (root / "cgroup").mkdir()
        for name in CONTROLLERS:
            group = CONTROL_GROUPS / name / layout.group
            group.mkdir(exist_ok=True)
            (root / "cgroup" / name).symlink_to(group)
    if memory == "stand-in":
        script = root / "etc/over-memory.sh"
        script.write_text(over_memory_script(profile, layout))
        script.chmod(0o755)
    (root / "etc/gres.conf").write_text(gres_conf(profile, layout))
    database = root / "etc/slurmdbd.conf"
    database.touch(0o600)
    database.write_text(slurmdbd_conf(layout))
    prolog = root / "etc/taskprolog.sh"
    prolog.write_text(task_prolog(layout))
    prolog.chmod(0o755)
    (root / STATE).write_text(json.dumps({"cluster": profile.name, "nodes": [node.name for node in nodes]}))
    return layout


def _plugin(name: str) -> bool:
    """Tell whether Slurm has a plugin: Debian and others keep them below lib/.../slurm*."""
    return any(Path("/usr").glob(f"lib*/slurm*/{name}.so")) or any(Path("/usr/lib").glob(f"*/slurm*/{name}.so"))


def control_groups_here() -> bool:
    """Tell whether Slurm can use control groups of version 1 here: root, and a hierarchy that it may write to."""
    return os.geteuid() == 0 and all(
        (CONTROL_GROUPS / name / "tasks").exists() and os.access(CONTROL_GROUPS / name, os.W_OK) for name in CONTROLLERS
    )


def remove_groups(top: Path) -> None:
    """Remove a control group and those in it, the innermost first. The kernel may need a moment after the last task."""
    for place, _, _ in os.walk(top, topdown=False):
        for _ in range(20):
            try:
                Path(place).rmdir()
                break
            except OSError as error:
                if error.errno != errno.EBUSY:
                    break
                time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    """Choose free ports below those of outgoing connections, any of which could take one before its daemon does."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    below = list(range(_FIRST_PORT, lowest))
    random.shuffle(below)
    held: list[socket.socket] = []
    try:
        # 0, the kernel's choice, where its range begins so low that nothing is left.
        for port in [*below, *[0] * count]:
            if len(held) == count:
                break
            listener = socket.socket()
            held.append(listener)
            try:
                listener.bind(("", port))
            except OSError:
                held.pop().close()
        return [int(bound.getsockname()[1]) for bound in held]
    finally:
        for listener in held:
            listener.close()
