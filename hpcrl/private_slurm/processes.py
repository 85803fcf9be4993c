"""The processes of a private Slurm: which they are, on which of its nodes, and how they are ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil


def processes_of(directory: Path, conf: Path) -> list[psutil.Process]:
    """Return every process of the cluster in a directory: daemons, step daemons and processes of jobs."""
    mark = str(conf)
    processes = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        daemon = _variable(process, "HPCRL_VIRTUAL_SLURM") == mark
        task = _variable(process, "SLURM_CONF") == mark and _variable(process, "SLURMD_NODENAME") is not None
        if daemon or task or _step_node(process, directory):
            processes.append(process)
    return processes


def node_of(process: psutil.Process, directory: Path) -> str | None:
    """Return the node that a process belongs to: a slurmd, a step daemon or a task."""
    names = ("HPCRL_VIRTUAL_NODE", "SLURMD_NODENAME")
    return next(filter(None, (_variable(process, name) for name in names)), _step_node(process, directory))


def _step_node(process: psutil.Process, directory: Path) -> str | None:
    """Return the node of a step daemon. It overwrites its environment, but listens at spool/NODE/NODE_JOB.STEP."""
    spool = f"{directory}/spool/"
    if name_of(process) == "slurmstepd":
        with suppress(psutil.Error, OSError):
            for connection in process.net_connections("unix"):
                if str(connection.laddr).startswith(spool):
                    return str(connection.laddr).removeprefix(spool).partition("/")[0]
    return None


def name_of(process: psutil.Process) -> str:
    """Return the name of a process; none if it is gone."""
    with suppress(psutil.Error):
        return process.name()
    return ""


def _variable(process: psutil.Process, name: str) -> str | None:
    with suppress(psutil.Error, OSError):
        return process.environ().get(name)
    return None


def kill(processes: Sequence[psutil.Process]) -> None:
    """End processes by SIGKILL."""
    for process in processes:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(processes, timeout=10)


def end(processes: Sequence[psutil.Process], patience: float) -> None:
    """End processes by SIGTERM; after `patience` seconds by SIGKILL."""
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(signal.SIGTERM)
    _, alive = psutil.wait_procs(processes, timeout=patience)
    for process in alive:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=5)
