"""How MXNet ranks average gradients: Horovod."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
from numpy.typing import NDArray

from hpcrl.rl.distributed.group import Group
from hpcrl.rl.distributed.horovod import Binding
from hpcrl.rl.frameworks.mxnet import runtime
from hpcrl.telemetry.phases import PhaseClock


class Horovod(Binding):
    """One all-reduce of the flat gradient, with a wait: Horovod accepts a name again only after its last use has ended."""

    wait = staticmethod(runtime.wait)

    def __init__(self, group: Group, clock: PhaseClock) -> None:
        import horovod.mxnet as hvd

        super().__init__(hvd, group, clock)

    def mean(self, vector: Any) -> Any:
        mean = self.hvd.allreduce(vector, average=True, name=f"vector.{vector.size}")
        mean.wait_to_read()
        return mean

    def mean_array(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        mean: NDArray[np.float32] = self.mean(mx.nd.array(values)).asnumpy()
        return mean

    def close(self) -> None:
        mx.nd.waitall()
        super().close()


horovod = Horovod
