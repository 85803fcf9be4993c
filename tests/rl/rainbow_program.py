"""What Rainbow learns in one of a framework's modes, where the answer is known."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hpcrl.catalogue.algorithms.rainbow import Settings
from hpcrl.rl.envs.probes import Probe, wanted_values
from hpcrl.rl.interfaces import Weights
from hpcrl.rl.make import make_training
from hpcrl.rl.runs import Run
from hpcrl.rl.smoke import Silent
from hpcrl.rl.specification.rainbow import mean_weights, q_values
from hpcrl.rl.train import train
from hpcrl.telemetry.phases import PhaseClock

SETTINGS = Settings(
    total_steps=400, hidden=(16,), learning_rate=1e-2, final_learning_rate=1e-3, learning_starts=50, batch_size=32, target_interval=20,
    gamma=0.5, n_step=3, atoms=21, value_minimum=-2.0, value_maximum=2.0, evaluation_interval=200, evaluation_episodes=2,
)  # fmt: skip
NOTHING: dict[str, Any] = {
    "double": False, "dueling": False, "prioritized": False, "n_step": 1, "noisy": False, "distributional": False
}  # fmt: skip


def trained(framework: str, execution: str, probe: int, settings: Settings = SETTINGS, **extra: Any) -> Weights:
    """Return the weights after a training on a probe."""
    if framework == "torch":
        import torch

        torch._dynamo.reset()
    run = Run(3, Silent(), PhaseClock())
    training = make_training("rainbow", settings, framework, execution, partial(Probe, probe), run)
    train(training, **extra)
    return training.learner.weights("online")


def error(weights: Weights, probe: int, settings: Settings = SETTINGS) -> float:
    """Return how far the values of the best actions are from the true ones; infinitely, if another action is the best."""
    shown, wanted = wanted_values(probe, settings.gamma)
    learned = q_values(mean_weights(weights), shown, settings)
    if (learned.argmax(1) != wanted.argmax(1)).any():
        return float("inf")
    # Noise explores less and less: the value of the worse action may still be that of a few tries.
    return float(np.abs(learned.max(1) - wanted.max(1)).max())


def same(first: Weights, second: Weights) -> bool:
    return all(array.tobytes() == second[name].tobytes() for name, array in first.items())


def known(framework: str, execution: str, part: str) -> dict[str, Any]:
    """The environment of the fourth probe is the same in every episode: a run can be resumed in it to the bit."""
    settings = SETTINGS if part == "whole" else replace(SETTINGS, total_steps=120)  # too few to learn
    whole = trained(framework, execution, 4, settings)
    # A compiled loop can be stopped at an evaluation only.
    asked = iter([*[False] * (1 if execution == "fused" else settings.total_steps // 2 + 1), *[True] * 10])
    with tempfile.TemporaryDirectory() as place:
        file = Path(place, "checkpoint.npz")
        stopped = trained(framework, execution, 4, settings, stop=lambda: next(asked), checkpoint_file=file)
        resumed = trained(framework, execution, 4, settings, checkpoint_file=file)
    facts: dict[str, Any] = {
        "probes": [],
        "resumed": same(whole, resumed),
        "stopped": not same(whole, stopped),
    }
    if part == "whole":
        facts["probes"] = [error(whole, 4)]
        facts["probes"] += [error(trained(framework, execution, number), number) for number in (1, 2, 3, 5)]
        none = replace(SETTINGS, **NOTHING)
        facts["no part"] = error(trained(framework, execution, 5, none), 5, none)
        if execution != "fused":
            many = replace(SETTINGS, environments=4, train_interval=4, updates=2)
            facts["several environments"] = error(trained(framework, execution, 5, many), 5)
    return facts
