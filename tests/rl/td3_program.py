"""What TD3 learns in one of a framework's modes, where the answer is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from hpcrl.catalogue.algorithms.td3 import Settings
from hpcrl.rl.interfaces import Weights
from hpcrl.rl.make import make_training
from hpcrl.rl.runs import Run
from hpcrl.rl.smoke import Silent
from hpcrl.rl.specification.td3 import greedy, q_values
from hpcrl.rl.train import train
from hpcrl.telemetry.phases import PhaseClock
from tests.rl.builders import Dial, Target

SETTINGS = Settings(
    hidden=(32,), learning_rate=1e-2, final_learning_rate=2e-3, value_learning_rate=3e-2,
    final_value_learning_rate=3e-3, gamma=0.5, batch_size=32, random_steps=100, learning_starts=100, train_interval=10,
    updates=10, target_share=0.1, evaluation_episodes=2,
)  # fmt: skip


def trained(
    framework: str, execution: str, make_environment: Callable[[], Any], steps: int
) -> tuple[dict[str, Weights], float | None]:
    """Return the weights of policy and critics after a training, and the last score."""
    if framework == "torch":
        import torch

        torch._dynamo.reset()
    settings = replace(SETTINGS, total_steps=steps, evaluation_interval=steps)
    run = Run(3, Silent(), PhaseClock())
    training = make_training("td3", settings, framework, execution, make_environment, run)
    result = train(training)
    return {group: training.learner.weights(group) for group in ("actor", "critics")}, result.final_score


def values(weights: dict[str, Weights], shown: float) -> list[float]:
    """Return what both critics say of the policy's action."""
    seen = np.array([[shown]], np.float32)
    found = q_values(weights["critics"], seen, greedy(seen, SETTINGS, weights["actor"]), SETTINGS)
    return [float(outputs[-1][0, 0]) for outputs in found]


def known(framework: str, execution: str, part: str) -> dict[str, Any]:
    endless = trained(framework, execution, partial(Dial, cut=True, blind=True), 300)[0]
    first, second = (trained(framework, execution, Target, 150)[0] for _ in range(2))
    facts: dict[str, Any] = {
        "cut off": values(endless, 0.0),
        "identical": all(
            np.array_equal(array, second[group][name]) for group in first for name, array in first[group].items()
        ),
    }
    if part == "whole":
        facts["target"] = trained(framework, execution, Target, 500)[1]
    return facts
