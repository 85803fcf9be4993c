"""What PPO learns in one of a framework's modes, where the answer is known; run as a program, whether it resumes to the bit."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.catalogue.algorithms.ppo import Settings
from hpcrl.rl.envs.make import gymnasium_environment
from hpcrl.rl.envs.probes import Probe
from hpcrl.rl.interfaces import Weights
from hpcrl.rl.make import make_training
from hpcrl.rl.runs import Run
from hpcrl.rl.smoke import Silent
from hpcrl.rl.specification.networks import forward, named
from hpcrl.rl.train import train
from hpcrl.telemetry.phases import PhaseClock

SETTINGS = Settings(
    total_steps=720, hidden=(16,), learning_rate=1e-2, environments=4, rollout_steps=12, minibatch_size=16, epochs=3,
    gamma=0.5, gae_lambda=0.95, evaluation_interval=720, evaluation_episodes=2,
)  # fmt: skip


class TwoSteps(Probe):
    """Two steps in each episode, with a good action in each. After an even number of steps no episode has begun: a run can be resumed to the bit."""

    def __init__(self) -> None:
        super().__init__(4)

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        reward = 1.0 if action == int(self._shown) else -1.0
        self._shown += 1.0
        return self._observation(), reward, self._shown == 2.0, False, {}


def trained(
    framework: str, execution: str, make_environment: Callable[[], Any], **changes: Any
) -> tuple[Weights, float | None, float]:
    """Return the weights after a training, the last score, and the mean divergence from the policies that acted."""
    if framework == "torch":
        import torch

        torch._dynamo.reset()
    run = Run(3, Silent(), PhaseClock())
    training = make_training("ppo", replace(SETTINGS, **changes), framework, execution, make_environment, run)
    result = train(training)
    return training.learner.weights("both"), result.final_score, training.loop.measures()["divergence"]


def values(weights: Weights, observations: list[list[float]]) -> list[float]:
    """Return the critic's values."""
    found: list[float] = forward(named(weights, "critic"), np.array(observations, np.float32), "tanh")[-1][
        :, 0
    ].tolist()
    return found


def resumed(framework: str, execution: str) -> dict[str, bool]:
    """Tell whether a run that is stopped after four of six rollouts has other weights and moments, and the same when it is resumed."""
    # The compiled loop has the environments in its checkpoint, and takes both rollouts between two evaluations before it asks whether to stop.
    fused = execution == "fused"
    make: Callable[[], Any] = partial(Probe, 5) if fused else TwoSteps
    scaled = replace(SETTINGS, total_steps=288, evaluation_interval=96, normalize_observations=True, normalize_rewards=True)  # fmt: skip

    def end(**given: Any) -> list[bytes]:
        training = make_training("ppo", scaled, framework, execution, make, Run(3, Silent(), PhaseClock()))
        train(training, **given)
        arrays = [*training.learner.weights("both").values(), *(training.loop.moments() or ())]
        return [np.asarray(array).tobytes() for array in arrays]

    whole, asked = end(), iter([*[False] * (2 if fused else 4), *[True] * 10])
    with tempfile.TemporaryDirectory() as place:
        file = Path(place, "checkpoint.npz")
        stopped = end(stop=lambda: next(asked), checkpoint_file=file)
        return {"stopped": stopped != whole, "resumed": end(checkpoint_file=file) == whole}


def known(framework: str, execution: str, part: str) -> dict[str, Any]:
    first, second = (trained(framework, execution, partial(Probe, 5)) for _ in range(2))
    cut = trained(framework, execution, partial(gymnasium_environment, "CartPole-v1", 5))[0]
    facts: dict[str, Any] = {
        "score": first[1],
        "divergence": first[2],
        "identical": all(np.array_equal(array, second[0][name]) for name, array in first[0].items()),
        "cut off": values(cut, [[0.0, 0.0, 0.0, 0.0], [0.02, 0.3, -0.02, -0.3], [-0.02, -0.3, 0.02, 0.3]]),
    }
    if part == "whole":
        discounted = trained(framework, execution, partial(Probe, 3))[0]
        scaled = trained(framework, execution, partial(Probe, 5), normalize_observations=True, normalize_rewards=True)
        facts["discounted"] = values(discounted, [[0.0], [1.0]])
        facts["score by scaled observations"] = scaled[1]
    return facts


if __name__ == "__main__":
    print(json.dumps(resumed(*sys.argv[1:])))
