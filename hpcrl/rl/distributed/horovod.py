"""The common part of Horovod's bindings for the frameworks."""

from __future__ import annotations

from typing import Any

from hpcrl.errors import HpcrlError
from hpcrl.rl.distributed.group import Group


class Binding:
    """A framework's binding of Horovod; the framework defines `average` and `average_array`.

    Raises:
        HpcrlError: Horovod sees other ranks than hpcrl started.
    """

    def __init__(self, hvd: Any, group: Group) -> None:
        import horovod

        hvd.init()
        check_size("Horovod", hvd.size(), group)
        operations = "NCCL and " if hvd.nccl_built() else ""
        self.hvd = hvd
        self.rank, self.ranks = group.rank, group.ranks
        self.name = f"Horovod {horovod.__version__} over {operations}{'Gloo' if hvd.gloo_enabled() else 'MPI'}"

    def close(self) -> None:
        self.hvd.shutdown()


def check_size(what: str, found: int, group: Group) -> None:
    """Make sure that the launcher and the library have the same ranks."""
    if found != group.ranks:
        raise HpcrlError(
            f"rank {group.rank}: {what} sees {found} of this cell's {group.ranks} ranks: the MPI that it was built with does not "
            "know this launcher (`launch.mpi` in the cluster's profile; `srun --mpi=list` shows what Slurm offers)"
        )
