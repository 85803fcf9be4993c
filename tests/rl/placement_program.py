"""Run in a framework's own environment: does all of a learner's work happen on the device that it was given?

No GPU is needed. PyTorch's `meta` device computes nothing, but refuses to mix with the CPU's tensors as a GPU does.
MXNet's second CPU context and JAX's second host device refuse the first one's arrays, and compute.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np

from hpcrl.catalogue.algorithms.dqn import Settings
from hpcrl.rl.interfaces import Learner
from tests.rl.builders import batch, dqn, first_weights, learner_of

OBSERVATION = np.zeros((1, 4), np.float32)


def torch_devices(make: Any, given: Any) -> list[str]:
    import torch

    from hpcrl.rl.frameworks.torch import runtime

    with patch.object(runtime, "check_device", lambda device, lazy: torch.device("meta")):
        learner = make()
    learner.update("update", learner.transfer(given), 1e-3)
    learner.sync("target")
    shown = torch.from_numpy(OBSERVATION).to("meta")
    kept = [flat.vector for flat in learner._flats.values()]
    kept += [slot for optimizer in learner._optimizers.values() for slot in optimizer.slots()]
    return [tensor.device.type for tensor in (*kept, learner._greedy(shown))]


def mxnet_devices(make: Any, given: Any) -> list[str]:
    import mxnet as mx

    from hpcrl.rl.frameworks.mxnet import runtime

    with patch.object(runtime, "check_device", lambda device: mx.cpu(1)):
        learner = make()
    _work(learner, given)
    kept = [array for flat in learner._flats.values() for array in flat.views]
    kept += [slot for optimizer in learner._optimizers.values() for slot in optimizer.slots()]
    return [str(array.context) for array in kept]


def jax_devices(make: Any, given: Any) -> list[str]:
    import jax

    first, second = jax.local_devices()
    with patch.object(jax, "local_devices", lambda: [second, first]):
        learner = make()
    _work(learner, given)
    return [str(*array.devices()) for array in jax.tree.leaves((learner.vectors, learner.slots))]


def _work(learner: Learner, given: Any) -> None:
    for _ in range(2):
        learner.update("update", learner.transfer(given), 1e-3)
        learner.act(OBSERVATION)
        learner.sync("target")
    learner.load_state({name: np.array(each) for name, each in learner.state().items()})
    learner.update("update", learner.transfer(given), 1e-3)
    learner.synchronize()


def main(framework: str, execution: str) -> None:
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    devices = {"torch": torch_devices, "mxnet": mxnet_devices, "jax": jax_devices}[framework]
    seen: set[str] = set()
    for dueling, defaults, optimizer in itertools.product((False, True), ("aligned", "framework"), ("adam", "rmsprop")):
        settings = Settings(
            hidden=(16,),
            optimizer=optimizer,
            defaults=defaults,
            loss="huber",
            max_gradient_norm=1.0,
            double=dueling,
            dueling=dueling,
        )
        made, draw = dqn(settings), np.random.default_rng(0)
        make = partial(learner_of, framework, execution, made, first_weights(made, draw))
        seen |= set(devices(make, batch(draw)))
    print(json.dumps(sorted(seen)))


if __name__ == "__main__":
    main(*sys.argv[1:])
