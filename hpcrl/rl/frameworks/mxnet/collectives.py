"""How MXNet ranks average gradients: Horovod."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
from numpy.typing import NDArray

from hpcrl.rl.distributed.group import Group
from hpcrl.rl.distributed.horovod import Binding


class Horovod(Binding):
    """One all-reduce of the flat gradient, with a wait: Horovod accepts a name again only after its last use has ended."""

    def __init__(self, group: Group) -> None:
        import horovod.mxnet as hvd

        super().__init__(hvd, group)

    def average(self, vector: Any) -> Any:
        averaged = self.hvd.allreduce(vector, average=True, name=f"vector.{vector.size}")
        averaged.wait_to_read()
        return averaged

    def average_array(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        averaged: NDArray[np.float32] = self.average(mx.nd.array(values)).asnumpy()
        return averaged

    def close(self) -> None:
        mx.nd.waitall()
        super().close()


horovod = Horovod
