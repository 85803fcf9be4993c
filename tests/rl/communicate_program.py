"""Run in a framework's own environment: updates with a collective that sends nothing; prints the seconds of two phases."""

from __future__ import annotations

import json
import sys
from statistics import median
from typing import Any

import numpy as np

from hpcrl.rl.frameworks import configure, make_dqn_learner, wait_for
from hpcrl.rl.learner import DqnSettings, Network, initial_weights
from hpcrl.run.training import TimedCollective
from hpcrl.telemetry.phases import PhaseClock
from tests.rl.parity_program import batch


class Silence:
    """A group of one that sends nothing."""

    rank, ranks, name = 0, 1, "nothing"

    def average(self, vector: Any) -> Any:
        return vector

    def average_array(self, values: Any) -> Any:
        return values

    def close(self) -> None:
        pass


def main(framework: str, execution: str) -> None:
    configure(framework)
    clock = PhaseClock()
    network, draw = Network(4, (512, 512), 2), np.random.default_rng(0)
    weights = dict(initial_weights(network, draw))
    collective = TimedCollective(Silence(), clock, wait_for(framework))
    learner = make_dqn_learner(framework, execution, network, weights, DqnSettings(), "cpu", collective)
    given = learner.transfer(batch(draw))
    seconds: dict[str, list[float]] = {"update": [], "communicate": []}
    for _ in range(40):
        before = dict(clock.seconds)
        clock.switch("update")
        learner.update(given, 1e-3)
        learner.synchronize()
        clock.switch("other")
        for phase, each in seconds.items():
            each.append(clock.seconds[phase] - before[phase])
    print(json.dumps({phase: median(each[5:]) for phase, each in seconds.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
