"""Run in a framework's own environment: how far its learner strays from the NumPy learner in float64, as JSON."""

from __future__ import annotations

import itertools
import json
import sys

import numpy as np

from hpcrl.rl.frameworks import make_dqn_learner
from hpcrl.rl.frameworks.numpy.dqn import Learner as NumpyLearner
from hpcrl.rl.learner import Batch, DqnSettings, Network, initial_weights

# The plain, double and duelling losses, each with either optimiser, either error, clipping that acts and that does not.
CASES = [
    (loss, form, optimizer, clip)
    for loss, form, optimizer, clip in itertools.product(
        ("huber", "mse"), ("plain", "double", "dueling", "both"), ("adam", "rmsprop"), (10.0, 0.1)
    )
]


def batch(draw: np.random.Generator) -> Batch:
    return Batch(
        draw.normal(size=(128, 4)).astype(np.float32),
        draw.integers(0, 2, 128),
        (3 * draw.normal(size=128)).astype(np.float32),
        draw.normal(size=(128, 4)).astype(np.float32),
        (draw.random(128) < 0.1).astype(np.float32),
    )


def main(framework: str, execution: str, part: str) -> None:
    found = []
    for loss, form, optimizer, clip in {"all": CASES, "some": CASES[::5], "few": CASES[5:16:10]}[part]:
        network = Network(4, (120, 84), 2, dueling=form in ("dueling", "both"))
        draw = np.random.default_rng(0)
        weights = initial_weights(network, draw)
        # RMSprop's first steps, and the small gradients of duelling, divide by what float32 rounds: a larger epsilon
        # takes that noise away (NumPy's own float32 strays as far), and shows a misplaced epsilon all the more.
        epsilon = 1e-8 if optimizer == "adam" and not network.dueling else 1e-4
        settings = DqnSettings(
            loss=loss,
            double=form in ("double", "both"),
            optimizer=optimizer,
            optimizer_epsilon=epsilon,
            max_gradient_norm=clip,
        )
        exact = NumpyLearner(network, weights, settings, dtype=np.float64)
        learner = make_dqn_learner(framework, execution, network, weights, settings)
        strays = []
        synced = True
        for number in range(1, 11):
            given = batch(draw)
            exact.update(given, 2.5e-4)
            learner.update(learner.transfer(given), 2.5e-4)
            if number == 5:
                exact.sync_target()
                learner.sync_target()
                state = learner.state()
                synced = all((state[f"target/{name}"] == each).all() for name, each in learner.weights().items())
            mine = learner.weights()
            strays.append(max(float(np.abs(each - mine[name]).max()) for name, each in exact.weights().items()))
        moved = max(float(np.abs(each - weights[name]).max()) for name, each in exact.weights().items())
        states = draw.normal(size=(1000, 4)).astype(np.float32)
        agree = int((exact.act(states) == learner.act(states)).sum())
        restored = make_dqn_learner(framework, execution, network, weights, settings)
        restored.load_state({name: np.array(each) for name, each in learner.state().items()})
        for each in (learner, restored):
            each.update(each.transfer(given), 1e-3)
        same = all((each == restored.weights()[name]).all() for name, each in learner.weights().items())
        found.append(
            {
                "case": f"{loss} {form} {optimizer} clip={clip}",
                "one": strays[0],
                "ten": strays[-1],
                "moved": moved,
                "agree": agree,
                "synced": synced,
                "restored": same,
                "compiled": learner.compiled(),
            }
        )
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
