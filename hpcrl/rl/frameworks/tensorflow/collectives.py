"""How TensorFlow ranks average gradients: Horovod, or the collective of tf.distribute's MultiWorkerMirroredStrategy."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from hpcrl.rl.distributed.group import Group
from hpcrl.rl.distributed.horovod import Binding


class Horovod(Binding):
    """One all-reduce of the flat gradient. It stands outside tf.function: XLA cannot hold it."""

    def __init__(self, group: Group) -> None:
        import horovod.tensorflow as hvd

        super().__init__(hvd, group)

    def average(self, vector: Any) -> Any:
        return self.hvd.allreduce(vector, op=self.hvd.Average, name=f"vector.{vector.shape[0]}")

    def average_array(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        averaged: NDArray[np.float32] = self.average(tf.constant(values)).numpy()
        return averaged


class Native:
    """The all-reduce of MultiWorkerMirroredStrategy, on the flat gradient."""

    def __init__(self, group: Group) -> None:
        os.environ["TF_CONFIG"] = json.dumps(
            {"cluster": {"worker": list(group.addresses)}, "task": {"type": "worker", "index": group.rank}}
        )
        gpu = bool(tf.config.list_physical_devices("GPU"))
        kinds = tf.distribute.experimental.CommunicationImplementation
        options = tf.distribute.experimental.CommunicationOptions(implementation=kinds.NCCL if gpu else kinds.RING)
        strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)

        def mean(vector: Any) -> Any:
            context = tf.distribute.get_replica_context()
            # An argument of a graph has no device, and the collective goes by devices.
            return context.all_reduce(tf.distribute.ReduceOp.MEAN, tf.identity(vector))

        self._average = tf.function(lambda vector: strategy.run(mean, args=(vector,)), autograph=False)
        self.rank, self.ranks = group.rank, group.ranks
        self.name = f"tf.distribute MultiWorkerMirroredStrategy over {'NCCL' if gpu else 'gRPC ring'}"

    def average(self, vector: Any) -> Any:
        return self._average(vector)

    def average_array(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        averaged: NDArray[np.float32] = self.average(tf.constant(values)).numpy()
        return averaged

    def close(self) -> None:
        self.average_array(np.zeros(1, np.float32))  # nobody leaves before all have come here


horovod, native = Horovod, Native
