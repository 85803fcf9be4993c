"""How JAX ranks average gradients. Horovod has no JAX binding: its cells use MPI directly, and the data say so."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from numpy.typing import NDArray

from hpcrl.rl.distributed.collective import Collective
from hpcrl.rl.distributed.group import Group
from hpcrl.rl.distributed.horovod import check_size
from hpcrl.rl.frameworks.jax import runtime
from hpcrl.telemetry.phases import PhaseClock


class Mpi(Collective):
    """jitted gradient -> MPI_Allreduce of the flat vector through mpi4py -> jitted update."""

    wait = staticmethod(runtime.wait)

    def __init__(self, group: Group, clock: PhaseClock) -> None:
        from mpi4py import MPI

        self._sum, self._world = MPI.SUM, MPI.COMM_WORLD
        check_size("MPI", self._world.size, group)
        library = MPI.Get_library_version().split(",")[0].split(" package")[0].strip()
        super().__init__(group, f"mpi4py over {library}, not Horovod, which has no JAX binding", clock)

    def mean(self, vector: Any) -> Any:
        return self.mean_array(np.asarray(vector))

    def mean_array(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        total = np.empty_like(values)
        self._world.Allreduce(values, total, self._sum)
        total /= self.ranks
        return total

    def close(self) -> None:
        self._world.Barrier()


class Native(Collective):
    """jax.distributed: a mean over the ranks' devices inside a compiled function."""

    wait = staticmethod(runtime.wait)

    def __init__(self, group: Group, clock: PhaseClock) -> None:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            group.addresses[0],
            num_processes=group.ranks,
            process_id=group.rank,
            local_device_ids=[0],
            coordinator_bind_address=group.addresses[0],  # by default every address of the node
        )
        check_size("jax.distributed", jax.process_count(), group)
        mesh = jax.make_mesh((group.ranks,), ("rank",), devices=jax.devices())
        self._sharding = NamedSharding(mesh, PartitionSpec("rank"))
        everywhere = NamedSharding(mesh, PartitionSpec())
        self._row_mean = jax.jit(lambda rows: rows.mean(0), out_shardings=everywhere)
        super().__init__(group, f"jax.distributed over {'NCCL' if jax.default_backend() == 'gpu' else 'Gloo'}", clock)

    def mean(self, vector: Any) -> Any:
        rows = jax.make_array_from_single_device_arrays(
            (self.ranks, len(vector)), self._sharding, [jax.device_put(vector[None], jax.local_devices()[0])]
        )
        return self._row_mean(rows).addressable_data(0)

    def mean_array(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.asarray(self.mean(values))

    def close(self) -> None:
        jax.distributed.shutdown()


horovod, native = Mpi, Native
