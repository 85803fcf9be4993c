"""Run in a framework's own environment: how far its learner strays from the NumPy learner in float64, as JSON."""

from __future__ import annotations

import json
import sys

import numpy as np

from hpcrl.rl.frameworks import make_dqn_learner
from hpcrl.rl.frameworks.numpy.dqn import NumpyDqn
from hpcrl.rl.learner import Batch, Network, initial_weights

NETWORK = Network(4, (120, 84), 2)


def batch(draw: np.random.Generator) -> Batch:
    return Batch(
        draw.normal(size=(128, 4)).astype(np.float32),
        draw.integers(0, 2, 128),
        (3 * draw.normal(size=128)).astype(np.float32),
        draw.normal(size=(128, 4)).astype(np.float32),
        (draw.random(128) < 0.1).astype(np.float32),
    )


def main(framework: str, execution: str) -> None:
    found = []
    for loss in ("huber", "mse"):
        for double in (False, True):
            for clip in (10.0, 0.1):
                draw = np.random.default_rng(0)
                weights = initial_weights(NETWORK, draw)
                settings = {
                    "gamma": 0.99,
                    "max_gradient_norm": clip,
                    "loss": loss,
                    "double": double,
                    "adam_epsilon": 1e-8,
                }
                exact = NumpyDqn(NETWORK, weights, dtype=np.float64, **settings)
                learner = make_dqn_learner(framework, execution, NETWORK, weights, settings, "cpu")
                strays = []
                for number in range(1, 11):
                    given = batch(draw)
                    exact.update(given, 2.5e-4)
                    learner.update(given, 2.5e-4)
                    if number == 5:
                        exact.sync_target()
                        learner.sync_target()
                    mine = learner.weights()
                    strays.append(max(float(np.abs(each - mine[name]).max()) for name, each in exact.weights().items()))
                moved = max(float(np.abs(each - weights[name]).max()) for name, each in exact.weights().items())
                states = draw.normal(size=(1000, 4)).astype(np.float32)
                agree = int((exact.act(states) == learner.act(states)).sum())
                restored = make_dqn_learner(framework, execution, NETWORK, weights, settings, "cpu")
                restored.load_state({name: np.array(each) for name, each in learner.state().items()})
                for each in (learner, restored):
                    each.update(given, 1e-3)
                same = all((each == restored.weights()[name]).all() for name, each in learner.weights().items())
                found.append(
                    {
                        "case": f"{loss} double={double} clip={clip}",
                        "one": strays[0],
                        "ten": strays[-1],
                        "moved": moved,
                        "agree": agree,
                        "restored": same,
                        "compiled": learner.compiled(),
                    }
                )
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
