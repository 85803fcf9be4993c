"""How PyTorch ranks average gradients: Horovod, or torch's own DistributedDataParallel."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hpcrl.rl.distributed.collective import Collective
from hpcrl.rl.distributed.group import Group
from hpcrl.rl.distributed.horovod import Binding
from hpcrl.rl.frameworks.torch import runtime
from hpcrl.telemetry.phases import PhaseClock


class Horovod(Binding):
    """One all-reduce of the flat gradient."""

    wait = staticmethod(runtime.wait)

    def __init__(self, group: Group, clock: PhaseClock) -> None:
        import horovod.torch as hvd

        super().__init__(hvd, group, clock)

    def mean(self, vector: Any) -> Any:
        return self.hvd.allreduce_(vector.detach(), op=self.hvd.Average, name=f"vector.{len(vector)}")

    def mean_array(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        mean: NDArray[np.float32] = self.mean(torch.from_numpy(values.copy())).numpy()
        return mean


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


class _Value(torch.nn.Module):
    """The loss and its aux as a module with one flat parameter, for DistributedDataParallel."""

    def __init__(self, vector: torch.Tensor, value: Callable[..., Any]) -> None:
        super().__init__()
        self.vector = torch.nn.Parameter(vector)  # the same storage
        self._value = value

    def forward(self, batch: list[torch.Tensor]) -> Any:
        return self._value(self.vector, batch)


class Native(Collective):
    """torch.distributed; gradients through DistributedDataParallel, which overlaps them with the backward pass."""

    wait = staticmethod(runtime.wait)

    def __init__(self, group: Group, clock: PhaseClock) -> None:
        import torch.distributed as dist

        host = group.addresses[0].rpartition(":")[0]
        if host == "127.0.0.1":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=_store(group), rank=group.rank, world_size=group.ranks)
        super().__init__(group, f"DistributedDataParallel over {'NCCL' if backend == 'nccl' else 'Gloo'}", clock)
        self._dist = dist
        self._device = "cuda" if backend == "nccl" else "cpu"

    def averaged(self, gradient: Callable[..., tuple[Any, Any]], **parts: Any) -> Callable[..., tuple[Any, Any]]:
        """Average during the backward pass of `value(vector, batch)`, which is compiled by `compile`."""
        module = _Value(parts["vector"], parts["value"])
        wrapped = torch.nn.parallel.DistributedDataParallel(parts["compile"](module))

        def mean_gradient(vector: torch.Tensor, batch: list[torch.Tensor]) -> tuple[Any, Any]:
            module.vector.grad = None
            loss, aux = wrapped(batch)
            loss.backward()
            assert module.vector.grad is not None
            return module.vector.grad, tuple(array.detach() for array in aux)

        return mean_gradient

    def mean(self, vector: Any) -> Any:
        self._dist.all_reduce(vector)
        return vector / self.ranks

    def mean_array(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        mean: NDArray[np.float32] = self.mean(torch.from_numpy(values.copy()).to(self._device)).cpu().numpy()
        return mean

    def close(self) -> None:
        # References to the group must be gone first, or the process sometimes aborts at its exit.
        gc.collect()
        self._dist.barrier()
        self._dist.destroy_process_group()


horovod, native = Horovod, Native
