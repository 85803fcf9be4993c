"""``python -m hpcrl.rl.smoke FRAMEWORK PARALLELISM FLAVOUR``: does a software environment train?

Every mode of the framework must solve the fifth probe, on the GPU if the flavour is cuda and there is one. One JSON
line says for each mode how long it took, or why it failed.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

from hpcrl.catalogue.registry import frameworks
from hpcrl.rl.algorithms.dqn import DqnConfig, train
from hpcrl.rl.distributed.group import Group
from hpcrl.rl.envs.probes import Probe, wanted_values
from hpcrl.rl.frameworks import make_collective, make_dqn_learner
from hpcrl.rl.frameworks.numpy.dqn import q_values
from hpcrl.rl.learner import Collective, DqnLearner, Network, initial_weights
from hpcrl.telemetry.phases import PhaseClock
from hpcrl.telemetry.provenance import visible_gpus

CONFIG = DqnConfig(
    total_steps=500,
    hidden=(16,),
    learning_rate=1e-2,
    learning_starts=50,
    train_interval=10,
    updates=5,
    batch_size=32,
    gamma=0.9,
    evaluation_interval=500,
    evaluation_episodes=2,
)


class _Silent:
    def episode(self, step: int, value: float, length: int) -> None: ...

    def evaluation(self, step: int, value: float) -> None: ...

    def confirmation(self, step: int, value: float, reached: bool) -> None: ...

    def progress(self, step: int, total: int) -> None: ...

    def spent(self) -> dict[str, float | None]:
        return {}

    def resumed(self, step: int, spent: dict[str, float | None]) -> None: ...


def learn(
    framework: str,
    execution: str,
    probe: int,
    collective: Collective | None = None,
    device: str = "cpu",
    **changes: Any,
) -> float:
    """Train on a probe and return the maximum error of the learned Q values."""
    config = DqnConfig(**{**vars(CONFIG), **changes})
    learners: list[DqnLearner] = []

    def make(network: Network, stream: np.random.Generator) -> DqnLearner:
        weights = initial_weights(network, stream)
        learners.append(
            make_dqn_learner(
                framework, execution, network, dict(weights), config.learner_settings(), device, collective
            )
        )
        return learners[0]

    train(config, lambda: Probe(probe), make, 1, _Silent(), PhaseClock(), collective=collective)
    shown, wanted = wanted_values(probe, config.gamma)
    return float(np.abs(q_values(learners[0].weights(), shown, config.dueling) - wanted).max())


def main(framework: str, parallelism: str, flavour: str) -> None:
    """Print the result of each mode."""
    found: dict[str, str] = {}
    gpus = list(visible_gpus().values()) if flavour == "cuda" else []
    collective = make_collective(framework, parallelism, Group())
    for execution in frameworks()[framework].modes:
        if collective and execution in frameworks()[framework].one_process:
            continue
        start = time.perf_counter()
        try:
            miss = learn(framework, execution, 5, collective, "cuda" if gpus else "cpu")
            found[execution] = (
                f"trains ({time.perf_counter() - start:.1f} s)" if miss < 0.2 else f"learns badly: {miss}"
            )
        except Exception as error:  # the user needs to see any error of a framework
            found[execution] = f"fails: {' '.join(str(error).split())[:300] or type(error).__name__}"
    name = collective.name if collective else None
    print(json.dumps({"modes": found, "collective": name, "gpu": gpus[0] if gpus else None}))


if __name__ == "__main__":
    main(*sys.argv[1:])
