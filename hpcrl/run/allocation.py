"""The allocation of this process: node, rank, cores, attempt. Read from Slurm's variables, or hpcrl's own without Slurm."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcrl.catalogue.registry import frameworks
from hpcrl.formats.attempts import Start
from hpcrl.formats.plan import RECORDS, Cell
from hpcrl.slurm.client import Slurm, array_key, tasks_per_node

# Variables for the number of threads of numeric libraries; those of a framework are in the catalogue.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
)  # fmt: skip
# Variables with the rank if there is no Slurm: hpcrl's own, Open MPI's, MPICH's.
_RANK_VARIABLES = ("HPCRL_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


@dataclass(frozen=True)
class Allocation:
    """The allocation of one rank. `key` is the Slurm job (``JOBID_TASK``), None without Slurm.

    `addresses` is host:port of each rank, for frameworks whose ranks connect to each other.
    """

    node: str
    rank: int
    ranks: int
    local_rank: int
    attempt: str
    restarts: int
    key: str | None
    addresses: tuple[str, ...] = ()
    nodes: int = 1


def read_allocation(environment: Mapping[str, str] = os.environ) -> Allocation:
    """Read the allocation of this process.

    Nodes are named by ``SLURMD_NODENAME``, because several nodes may have one host name.
    """
    key = array_key(environment)
    if key is not None:
        restarts = int(environment.get("SLURM_RESTART_COUNT", "0"))
        ranks = int(environment.get("SLURM_NTASKS", "1")) if "SLURM_PROCID" in environment else 1
        return Allocation(
            node=environment.get("SLURMD_NODENAME") or socket.gethostname(),
            rank=int(environment.get("SLURM_PROCID", "0")),
            ranks=ranks,
            local_rank=int(environment.get("SLURM_LOCALID", "0")),
            attempt=f"{key}-{restarts}",
            restarts=restarts,
            key=key,
            addresses=_addresses(environment, ranks) if ranks > 1 else (),
            nodes=int(environment.get("SLURM_STEP_NUM_NODES", "1")) if ranks > 1 else 1,
        )
    rank = int(next((environment[name] for name in _RANK_VARIABLES if name in environment), "0"))
    return Allocation(
        node=socket.gethostname(),
        rank=rank,
        ranks=int(environment.get("HPCRL_RANKS", "1")),
        local_rank=rank,
        attempt=environment.get("HPCRL_ATTEMPT") or f"byhand-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}",
        restarts=int(environment.get("HPCRL_RESTARTS", "0")),
        key=None,
        addresses=tuple(address for address in environment.get("HPCRL_ADDRESSES", "").split(",") if address),
    )


def start_of(
    cell: Cell,
    attempt: int | None,
    allocation: Allocation,
    environment: Mapping[str, str] = os.environ,
    submission: str | None = None,
) -> Start:
    """Return the name of this start of a cell for the fence. A start without a granted attempt is by hand, with its own name.

    The ranks of one start share the script's mark, or, with a site's own template, the port of their srun.

    Args:
        submission: the token of the submission that granted the attempt.
    """
    mark = environment.get("HPCRL_START") or environment.get("SLURM_SRUN_COMM_PORT")
    if allocation.key is not None:
        name, restart, key = allocation.key, allocation.restarts, allocation.key
    else:
        name, restart, key = allocation.attempt, 0, allocation.attempt
    granted = name if attempt is None else str(attempt)
    return Start(cell.id, granted, restart, key, mark or allocation.attempt, submission)


def record_of(directory: Path, cell: Cell, allocation: Allocation) -> Path:
    """Return the file of this rank's record in the plan at `directory`."""
    # Imported here, because it imports NumPy, which reads the number of threads at its import.
    from hpcrl.formats.record import record_name

    return directory / RECORDS / record_name(cell.id, allocation.attempt, allocation.node, allocation.rank)


def _addresses(environment: Mapping[str, str], ranks: int) -> tuple[str, ...]:
    """Return an address for each rank of a step: its node, and a port that other jobs on the node do not use."""
    base = 20_000 + int(environment.get("SLURM_JOB_ID", "0")) * ranks % 30_000
    if environment.get("SLURM_STEP_NUM_NODES", "1") == "1":
        hosts = ["127.0.0.1"] * ranks  # names of nodes may not resolve
    else:
        nodes = Slurm().host_names(environment["SLURM_STEP_NODELIST"])
        counts = tasks_per_node(environment["SLURM_STEP_TASKS_PER_NODE"])
        hosts = [node for node, count in zip(nodes, counts, strict=True) for _ in range(count)]
    return tuple(f"{host}:{base + rank}" for rank, host in enumerate(hosts))


def limit_threads(cpus: int, local_rank: int = 0) -> None:
    """Set the number of threads of every library to `cpus`. Call it before NumPy or a framework is imported.

    Without Slurm the process is also bound to that many cores, because some libraries take the number of threads from the
    allowed cores. Each rank has its own cores if there are enough (``HPCRL_CORES`` lists those of the cell).
    """
    own = (name for framework in frameworks().values() for name in framework.threads)
    for name in (*_THREAD_VARIABLES, *own):
        os.environ[name] = str(cpus)
    if "SLURM_JOB_ID" in os.environ:
        return
    allowed = os.sched_getaffinity(0)
    named = [int(core) for core in os.environ.get("HPCRL_CORES", "").split(",") if core]
    cores = named if named and set(named) <= allowed else sorted(allowed)
    first = local_rank * cpus % len(cores)
    os.sched_setaffinity(0, cores[first : first + cpus] or cores)


def limit_gpus(gpus: int) -> list[str]:
    """Hide the GPUs of this node that the cell does not use, and return their names. Call it before a framework is imported.

    GPUs are numbered by bus, as in NVML. CUDA's default order is by estimated speed, so that on a node with several models
    the sampler would read another GPU.
    """
    from hpcrl.telemetry.provenance import visible_gpus

    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if not gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif len(visible := list(visible_gpus())) > gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible[:gpus])
        return visible[gpus:]
    return []
