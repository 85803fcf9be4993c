"""Run in a framework's own environment: what one of its modes does with images, as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from hpcrl.catalogue.algorithms.dqn import Settings
from hpcrl.rl.frameworks import framework_weights
from hpcrl.rl.interfaces import Weights
from hpcrl.rl.make import make_training
from hpcrl.rl.runs import Result, Run
from hpcrl.rl.train import train
from hpcrl.telemetry.phases import PhaseClock
from tests.rl.builders import Brighter, Reports, dqn, exact, first_weights, fresh, learner_of
from tests.rl.cases import IMAGE_CASES, IMAGES, image_batch

SETTINGS: dict[str, Any] = {
    "hidden": (32,), "filters": (4, 8), "total_steps": 600, "learning_starts": 100, "train_interval": 10, "updates": 6,
    "batch_size": 32, "learning_rate": 2e-3, "gamma": 0.0, "evaluation_interval": 600, "evaluation_episodes": 5,
}  # fmt: skip


def trained(framework: str, execution: str, **changes: Any) -> tuple[Result, Weights]:
    """Train, in two parts if `checkpoint_file` is given; return the result and the last weights."""
    extra = {name: changes.pop(name) for name in ("checkpoint_file", "stop") if name in changes}
    fresh(framework)
    run = Run(1, Reports(), PhaseClock())
    training = make_training("dqn", Settings(**SETTINGS | changes), framework, execution, Brighter, run)
    return train(training, **extra), training.learner.weights("online")


def strays(framework: str, execution: str, case: dict[str, Any]) -> dict[str, Any]:
    """How far the learner strays from the specification in float64 after each of ten updates."""
    fresh(framework)
    made, draw = dqn(Settings(hidden=(24,), **case), IMAGES), np.random.default_rng(0)
    weights = first_weights(made, draw)
    weights["online"][list(weights["online"])[-1]] *= 0  # no action is best for every image
    reference, learner = exact(made, weights), learner_of(framework, execution, made, weights)
    found = []
    for number in range(10):
        given = image_batch(draw)
        for each in (reference, learner):
            each.update("update", each.transfer(given), 2.5e-4)
            if number == 5:
                each.sync("target")
        mine = learner.weights("online")
        found.append(max(float(np.abs(array - mine[key]).max()) for key, array in reference.weights("online").items()))
    states = image_batch(draw, 200)[0]
    wanted, acted = reference.act(states), learner.act(states)
    restored = learner_of(framework, execution, made, weights)
    restored.load_state({name: np.array(array) for name, array in learner.state().items()})
    for each in (learner, restored):
        each.update("update", each.transfer(given), 1e-3)
    again = restored.weights("online")
    return {
        "strays": found,
        "moved": max(float(np.abs(array - weights["online"][key]).max()) for key, array in mine.items()),
        "agree": int((wanted == acted).sum()),
        "actions": len(set(wanted.tolist())),
        "restored": all(array.tobytes() == again[key].tobytes() for key, array in learner.weights("online").items()),
        "compiled": learner.compiled(),
    }


def main(framework: str, execution: str, part: str = "whole") -> None:
    own = {} if framework == "numpy" else {"defaults": "framework"}
    short = {"total_steps": 160, "evaluation_interval": 160}
    first, again = (trained(framework, execution, **short)[1] for _ in range(2))
    with TemporaryDirectory() as directory:
        file, steps = Path(directory) / "c.npz", iter(range(10**6))
        stopped = trained(framework, execution, **short, checkpoint_file=file, stop=lambda: next(steps) == 133)[0]
        resumed = trained(framework, execution, **short, checkpoint_file=file)[0]
    facts: dict[str, Any] = {
        "identical": all(array.tobytes() == again[name].tobytes() for name, array in first.items()),
        "stopped": [stopped.outcome, stopped.steps],
        "resumed": [resumed.outcome, resumed.steps],
    }
    if part == "whole":
        facts["score"] = trained(framework, execution)[0].final_score
        facts["score by NumPy"] = trained(framework, execution, acting="numpy", **own)[0].final_score
    if framework != "numpy":
        facts["parity"] = [strays(framework, execution, case) for case in IMAGE_CASES]
        made = dqn(Settings(hidden=(24,), filters=(64, 32)), IMAGES)
        drawn = framework_weights(framework, made, 1)["online"]
        facts["shapes"] = [list(array.shape) for array in drawn.values()]
        facts["first weights"] = [float(drawn[f"layers.{layer}.weight"].std()) for layer in (0, 1)]
    print(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
