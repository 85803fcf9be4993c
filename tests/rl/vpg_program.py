"""Run in a framework's own environment: what VPG learns in one of its modes where the answer is known, as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hpcrl.catalogue.algorithms.vpg import Settings
from hpcrl.rl.envs.probes import Probe
from hpcrl.rl.interfaces import Weights
from hpcrl.rl.make import make_training
from hpcrl.rl.runs import Run
from hpcrl.rl.smoke import Silent
from hpcrl.rl.specification.networks import forward
from hpcrl.rl.train import train
from hpcrl.telemetry.phases import PhaseClock
from tests.rl.builders import Target

SETTINGS = Settings(
    total_steps=12_000, hidden=(16,), learning_rate=1e-2, value_learning_rate=1e-2, gamma=0.5, environments=10,
    rollout_steps=10, value_steps=5, evaluation_interval=12_000, evaluation_episodes=2,
)  # fmt: skip


def trained(
    framework: str, execution: str, make_environment: Callable[[], Any]
) -> tuple[dict[str, Weights], float | None]:
    """Return the weights of actor and critic after a training, and the last score."""
    if framework == "torch":
        import torch

        torch._dynamo.reset()
    run = Run(3, Silent(), PhaseClock())
    training = make_training("vpg", SETTINGS, framework, execution, make_environment, run)
    result = train(training)
    return {group: training.learner.weights(group) for group in ("actor", "critic")}, result.final_score


def main(framework: str, execution: str) -> None:
    discounted = trained(framework, execution, partial(Probe, 3))[0]["critic"]
    better = trained(framework, execution, partial(Probe, 5))[1]
    (first, score), (second, _) = (trained(framework, execution, Target) for _ in range(2))
    shown = np.array([[0.0], [1.0]], np.float32)
    facts = {
        "discounted": forward(discounted, shown, "tanh")[-1][:, 0].tolist(),
        "better": better,
        "target": score,
        "identical": all(
            np.array_equal(array, second[group][name]) for group in first for name, array in first[group].items()
        ),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
