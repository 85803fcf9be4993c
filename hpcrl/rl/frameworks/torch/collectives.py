"""How PyTorch ranks average gradients: Horovod, or torch's own DistributedDataParallel."""

from __future__ import annotations

import gc
import os
import socket
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hpcrl.rl.distributed.group import Group
from hpcrl.rl.distributed.horovod import Binding


class Horovod(Binding):
    """One all-reduce of the flat gradient."""

    def __init__(self, group: Group) -> None:
        import horovod.torch as hvd

        super().__init__(hvd, group)

    def average(self, vector: Any) -> Any:
        return self.hvd.allreduce_(vector.detach(), op=self.hvd.Average, name=f"vector.{len(vector)}")

    def average_array(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        averaged: NDArray[np.float32] = self.average(torch.from_numpy(values.copy())).numpy()
        return averaged


def _store(group: Group) -> Any:
    """Return the store through which the ranks connect. By default its server would listen on every address."""
    import torch.distributed as dist

    host, _, port = group.addresses[0].rpartition(":")
    listening = None
    if group.rank == 0:
        listening = socket.create_server((host, int(port)), backlog=128)
    return dist.TCPStore(
        host,
        int(port),
        group.ranks,
        is_master=group.rank == 0,
        master_listen_fd=listening.detach() if listening else None,
        use_libuv=False,  # libuv accepts no socket that already listens
    )


class Native:
    """torch.distributed; gradients through DistributedDataParallel, which overlaps them with the backward pass."""

    def __init__(self, group: Group) -> None:
        import torch.distributed as dist

        host = group.addresses[0].rpartition(":")[0]
        if host == "127.0.0.1":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=_store(group), rank=group.rank, world_size=group.ranks)
        self._dist = dist
        self._device = "cuda" if backend == "nccl" else "cpu"
        self.rank, self.ranks = group.rank, group.ranks
        self.name = f"DistributedDataParallel over {'NCCL' if backend == 'nccl' else 'Gloo'}"

    def wrap(self, module: torch.nn.Module) -> torch.nn.Module:
        """Return the module whose backward pass averages gradients over ranks."""
        return torch.nn.parallel.DistributedDataParallel(module)

    def average(self, vector: Any) -> Any:
        self._dist.all_reduce(vector)
        return vector / self.ranks

    def average_array(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        averaged: NDArray[np.float32] = self.average(torch.from_numpy(values.copy()).to(self._device)).cpu().numpy()
        return averaged

    def close(self) -> None:
        # References to the group must be gone first, or the process sometimes aborts at its exit.
        gc.collect()
        self._dist.barrier()
        self._dist.destroy_process_group()


horovod, native = Horovod, Native
