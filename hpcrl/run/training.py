"""A cell of built-in training: from its configuration to a trained agent and the facts for its record."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from hpcrl.errors import UsageError
from hpcrl.rl.algorithms.dqn import DqnConfig, train
from hpcrl.rl.frameworks import make_dqn_learner
from hpcrl.rl.learner import DqnLearner, Network, initial_weights
from hpcrl.run.recorder import Recorder
from hpcrl.telemetry.phases import PhaseClock
from hpcrl.telemetry.provenance import visible_gpus


@dataclass(frozen=True)
class Ended:
    """How a workload ended, and what its record's footer says of it."""

    outcome: str
    reason: str | None
    facts: dict[str, Any]


def train_cell(
    workload: dict[str, Any],
    config: dict[str, Any],
    resources: dict[str, Any],
    goal: float | None,
    recorder: Recorder,
    clock: PhaseClock,
    stop: Any,
    checkpoint_file: Path,
) -> Ended:
    """Train the agent of one cell in this process.

    Raises:
        UsageError: the cell cannot run here: framework not installed, no GPU for a GPU cell, wrong settings.
    """
    import gymnasium

    if resources.get("parallelism", "none") != "none":
        raise UsageError(
            f"parallelism {resources['parallelism']}: this version plans and places such cells, but does not run them yet"
        )
    framework, execution = str(config["framework"]), str(config.get("execution", "eager"))
    if resources.get("gpus") and (framework == "numpy" or not visible_gpus()):
        what = "NumPy computes on the CPU only" if framework == "numpy" else "no NVIDIA GPU is visible here"
        raise UsageError(f"this cell asks for {resources['gpus']} GPUs, and {what}: it does not run on the CPU instead")
    names = {field.name for field in fields(DqnConfig)}
    settings = dict(workload.get("hyperparameters", {})) | {key: value for key, value in config.items() if key in names}
    hyperparameters = DqnConfig.from_mapping(settings)
    _before_import(framework, int(resources["cpus"]))

    def make_environment() -> Any:
        try:
            return gymnasium.make(workload["environment"], max_episode_steps=workload.get("max_episode_steps"))
        except gymnasium.error.Error as error:
            raise UsageError(f"environment {workload['environment']}: {' '.join(str(error).split())}") from None

    learners: list[DqnLearner] = []

    def make_learner(network: Network, generator: np.random.Generator) -> DqnLearner:
        weights = initial_weights(network, generator)
        device = "cuda" if resources.get("gpus") else "cpu"
        learners.append(
            make_dqn_learner(framework, execution, network, weights, hyperparameters.learner_settings(), device)
        )
        return learners[0]

    recorder.goal = goal
    result = train(
        hyperparameters,
        make_environment,
        make_learner,
        int(config["seed"]),
        recorder,
        clock,
        goal,
        stop,
        checkpoint_file,
    )
    facts = {
        "steps": result.steps,
        "episodes": result.episodes,
        "final_score": result.final_score,
        "best_score": result.best_score,
        "goal_step": result.goal_step,
        "goal_time": recorder.goal_time,
        "training_time": recorder.training_time(),
        "setup_time": clock.seconds["setup"],
        "compiled": learners[0].compiled(),
    }
    reason = "the loss is no longer a finite number" if result.outcome == "diverged" else None
    return Ended(result.outcome, reason, facts)


def _before_import(framework: str, cpus: int) -> None:
    """Settle what a framework reads only once, at its import."""
    if framework == "jax":
        flags = os.environ.get("XLA_FLAGS", "")
        if cpus == 1:
            os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if framework == "torch":
        import importlib.util

        if importlib.util.find_spec("torch") is not None:
            import torch

            torch.set_num_threads(cpus)
        if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
            # Else the first cell on a machine would pay for compiling, and the others would not.
            cache = tempfile.mkdtemp(prefix="hpcrl-inductor-")
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
            atexit.register(shutil.rmtree, cache, ignore_errors=True)
