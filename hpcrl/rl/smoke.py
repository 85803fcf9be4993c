"""``python -m hpcrl.rl.smoke FRAMEWORK PARALLELISM FLAVOUR``: does a software environment train?

Every mode of the framework must solve the fifth probe, on the GPU if the flavour is cuda and there is one, and the first mode also with
environments that are compiled beside it, where the environment has what compiles them. One JSON line says for each how long it took, or
why it failed.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np

from hpcrl.catalogue.algorithms.dqn import Settings
from hpcrl.catalogue.registry import frameworks
from hpcrl.catalogue.training import COMPILED_IN
from hpcrl.rl.distributed.collective import Collective
from hpcrl.rl.distributed.group import Group
from hpcrl.rl.envs.probes import Probe, wanted_values
from hpcrl.rl.frameworks import make_collective
from hpcrl.rl.make import make_training
from hpcrl.rl.runs import Run
from hpcrl.rl.specification.dqn import q_values
from hpcrl.rl.train import train
from hpcrl.telemetry.phases import PhaseClock
from hpcrl.telemetry.provenance import visible_gpus

SETTINGS = Settings(
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


class Silent:
    """A reporter that says nothing."""

    def episode(self, step: int, value: float, length: int) -> None: ...

    def evaluation(self, step: int, value: float) -> None: ...

    def confirmation(self, step: int, value: float, reached: bool) -> None: ...

    def progress(self, step: int, total: int) -> None: ...

    def event(self, text: str) -> None: ...

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
    settings = replace(SETTINGS, **changes)
    run = Run(1, Silent(), PhaseClock(), collective)
    training = make_training("dqn", settings, framework, execution, lambda: Probe(probe), run, device)
    train(training)
    shown, wanted = wanted_values(probe, settings.gamma)
    return float(np.abs(q_values(training.learner.weights("online"), shown, settings) - wanted).max())


def main(framework: str, parallelism: str, flavour: str) -> None:
    """Print the result of each mode."""
    results: dict[str, str] = {}
    gpus = list(visible_gpus().values()) if flavour == "cuda" else []
    collective, known = make_collective(framework, parallelism, Group(), PhaseClock()), frameworks()[framework]
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        mode: (mode, {}) for mode in known.modes if not (collective and mode in known.one_process)
    }
    if framework != COMPILED_IN and "compiled" in known.stepping and find_spec(COMPILED_IN):
        beside = f"{known.default_mode} with {frameworks()[COMPILED_IN].title} environments"
        cases[beside] = (known.default_mode, {"stepping": "compiled"})
    for case, (execution, changes) in cases.items():
        start = time.perf_counter()
        try:
            error = learn(framework, execution, 5, collective, "cuda" if gpus else "cpu", **changes)
            seconds = time.perf_counter() - start
            results[case] = f"trains ({seconds:.1f} s)" if error < 0.2 else f"learns badly: {error}"
        except Exception as failure:  # the user needs to see any error of a framework
            results[case] = f"fails: {' '.join(str(failure).split())[:300] or type(failure).__name__}"
    name = collective.name if collective else None
    print(json.dumps({"modes": results, "collective": name, "gpu": gpus[0] if gpus else None}))


if __name__ == "__main__":
    main(*sys.argv[1:])
