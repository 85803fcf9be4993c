"""The common part of Horovod's bindings for the frameworks."""

from __future__ import annotations

import os
from typing import Any

from hpcrl.errors import HpcrlError
from hpcrl.rl.distributed.collective import Collective
from hpcrl.rl.distributed.group import Group
from hpcrl.telemetry.phases import PhaseClock


class Binding(Collective):
    """A framework's binding of Horovod.

    Raises:
        HpcrlError: Horovod sees other ranks than hpcrl started.
    """

    def __init__(self, hvd: Any, group: Group, clock: PhaseClock) -> None:
        import horovod

        hvd.init()
        check_size("Horovod", hvd.size(), group)
        operations = "NCCL and " if hvd.nccl_built() else ""
        transport = "Gloo" if hvd.gloo_enabled() else "MPI"
        super().__init__(group, f"Horovod {horovod.__version__} over {operations}{transport}", clock)
        self.hvd = hvd

    def close(self) -> None:
        self.hvd.shutdown()


def check_size(library: str, size: int, group: Group) -> None:
    """Make sure that the launcher and the library have the same ranks.

    Raises:
        HpcrlError: the library has `size` ranks, and the group another number.
    """
    if size != group.ranks:
        advice = (
            "know this launcher (`launch.mpi` in the cluster's profile; `srun --mpi=list` shows what Slurm offers)"
            if "SLURM_STEP_ID" in os.environ
            else "belong to the mpirun on PATH (`mpirun --version` shows which that is): put the mpirun of the same MPI first on PATH"
        )
        raise HpcrlError(
            f"rank {group.rank}: {library} sees {size} of this cell's {group.ranks} ranks: the MPI that it was built with does not {advice}"
        )
