"""What this process was given: node, rank, cores, attempt; from Slurm's variables, or hpcrl's own without Slurm."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

from hpcrl.slurm.client import array_key

# Every library's own way to be told a number of threads.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
    "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "TORCHINDUCTOR_COMPILE_THREADS",
)  # fmt: skip


@dataclass(frozen=True)
class Allocation:
    """One rank's share. `key` is the Slurm job (``JOBID_TASK``), None without Slurm."""

    node: str
    rank: int
    ranks: int
    local_rank: int
    attempt: str
    restarts: int
    key: str | None


def read_allocation(environment: Mapping[str, str] = os.environ) -> Allocation:
    """Read the allocation of this process.

    Nodes are named by ``SLURMD_NODENAME``: several of them may share one host name.
    """
    key = array_key(environment)
    if key is not None:
        restarts = int(environment.get("SLURM_RESTART_COUNT", "0"))
        return Allocation(
            node=environment.get("SLURMD_NODENAME") or socket.gethostname(),
            rank=int(environment.get("SLURM_PROCID", "0")),
            ranks=int(environment.get("SLURM_NTASKS", "1")) if "SLURM_PROCID" in environment else 1,
            local_rank=int(environment.get("SLURM_LOCALID", "0")),
            attempt=f"{key}-{restarts}",
            restarts=restarts,
            key=key,
        )
    rank = int(environment.get("HPCRL_RANK", "0"))
    return Allocation(
        node=socket.gethostname(),
        rank=rank,
        ranks=int(environment.get("HPCRL_RANKS", "1")),
        local_rank=rank,
        attempt=environment.get("HPCRL_ATTEMPT") or f"byhand-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}",
        restarts=int(environment.get("HPCRL_RESTARTS", "0")),
        key=None,
    )


def limit_threads(cpus: int) -> None:
    """Tell every library to use `cpus` threads; call it before NumPy or a framework is imported.

    Without Slurm the process is also bound to that many of its cores (``HPCRL_CORES`` names them), since some
    libraries take the number of threads from what they may run on.
    """
    for name in _THREAD_VARIABLES:
        os.environ[name] = str(cpus)
    named = [int(core) for core in os.environ.get("HPCRL_CORES", "").split(",") if core]
    allowed = os.sched_getaffinity(0)
    if named and set(named) <= allowed:
        os.sched_setaffinity(0, named)
    elif len(allowed) > cpus and "SLURM_JOB_ID" not in os.environ:
        os.sched_setaffinity(0, sorted(allowed)[:cpus])
