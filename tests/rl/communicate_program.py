"""Run in a framework's own environment: updates with a collective that sends nothing; prints the seconds of two phases."""

from __future__ import annotations

import importlib
import json
import sys
from statistics import median
from typing import Any

import numpy as np

from hpcrl.catalogue.algorithms.dqn import Settings
from hpcrl.rl.frameworks import configure
from hpcrl.telemetry.phases import PhaseClock
from tests.rl.builders import Rank, batch, dqn, first_weights, learner_of


def main(framework: str, execution: str) -> None:
    configure(framework)
    wait = importlib.import_module(f"hpcrl.rl.frameworks.{framework}.runtime").wait

    class Silence(Rank):
        """A group of one that sends nothing."""

        def wait(self, vector: Any) -> None:
            wait(vector)

    clock = PhaseClock()
    made, draw = dqn(Settings(hidden=(512, 512))), np.random.default_rng(0)
    learner = learner_of(framework, execution, made, first_weights(made, draw), Silence(0, 1, clock))
    given = learner.transfer(batch(draw))
    seconds: dict[str, list[float]] = {"update": [], "communicate": []}
    for _ in range(40):
        before = dict(clock.seconds)
        clock.switch("update")
        learner.update("update", given, 1e-3)
        learner.synchronize()
        clock.switch("other")
        for phase, values in seconds.items():
            values.append(clock.seconds[phase] - before[phase])
    print(json.dumps({phase: median(values[5:]) for phase, values in seconds.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
