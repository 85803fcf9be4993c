"""How TensorFlow ranks average gradients: Horovod.

tf.distribute's MultiWorkerMirroredStrategy is left out on purpose: its gRPC server listens on every address without
authentication, so anybody who reaches the node can read and write files as the user.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hpcrl.rl.distributed.group import Group
from hpcrl.rl.distributed.horovod import Binding
from hpcrl.rl.frameworks.tensorflow import runtime
from hpcrl.telemetry.phases import PhaseClock


class Horovod(Binding):
    """One all-reduce of the flat gradient, outside tf.function, because XLA cannot contain it."""

    wait = staticmethod(runtime.wait)

    def __init__(self, group: Group, clock: PhaseClock) -> None:
        import horovod.tensorflow as hvd

        super().__init__(hvd, group, clock)

    def mean(self, vector: Any) -> Any:
        return self.hvd.allreduce(vector, op=self.hvd.Average, name=f"vector.{vector.shape[0]}")

    def mean_array(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        mean: NDArray[np.float32] = self.mean(tf.constant(values)).numpy()
        return mean


horovod = Horovod
