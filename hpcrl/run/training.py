"""Run a cell of built-in training: from its configuration to a trained agent and the facts for its record."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.catalogue.fields import names
from hpcrl.catalogue.registry import frameworks
from hpcrl.errors import UsageError
from hpcrl.rl.algorithms.dqn import DqnConfig, train
from hpcrl.rl.distributed.group import Group
from hpcrl.rl.frameworks import framework_weights, make_collective, make_dqn_learner, wait_for
from hpcrl.rl.learner import Collective, DqnLearner, Network, initial_weights
from hpcrl.run.recorder import Recorder
from hpcrl.telemetry.phases import NOT_TRAINING, PhaseClock, switch_cost
from hpcrl.telemetry.provenance import visible_gpus


@dataclass(frozen=True)
class Ended:
    """The outcome of a workload, its reason, and the facts for the footer of its record."""

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
    stop: Callable[[], bool],
    checkpoint_file: Path,
    group: Group,
    precise_phases: bool = False,
) -> Ended:
    """Train the agent of one cell in this process, together with the cell's other ranks if there are any.

    Raises:
        UsageError: the cell cannot run here: a framework is not installed, a GPU is missing, or settings are wrong.
        HpcrlError: the ranks do not find each other or do not agree.
    """
    import gymnasium

    framework = str(config["framework"])
    execution = str(config.get("execution", frameworks()[framework].default_mode))
    parallelism = str(resources.get("parallelism", "none"))
    on_gpus = "cuda" in frameworks()[framework].devices
    if resources.get("gpus") and (not on_gpus or not visible_gpus()):
        what = "no NVIDIA GPU is visible here" if on_gpus else f"{frameworks()[framework].title} supports the CPU only"
        raise UsageError(f"this cell asks for {resources['gpus']} GPUs, but {what}: run it on a node with GPUs")
    if group.ranks > 1 and parallelism == "none":
        raise UsageError(
            f"this cell has {group.ranks} ranks, but `parallelism` is none: set it to horovod or native in the study"
        )
    if parallelism != "none" and group.ranks != resources["tasks"]:
        raise UsageError(f"expected {resources['tasks']} ranks, got {group.ranks}: start all of them with --ranks")
    known = names(DqnConfig)
    settings = dict(workload.get("hyperparameters", {})) | {key: value for key, value in config.items() if key in known}
    hyperparameters = DqnConfig.from_mapping(settings)

    def make_environment() -> Any:
        try:
            return gymnasium.make(workload["environment"], max_episode_steps=workload.get("max_episode_steps"))
        except gymnasium.error.Error as error:
            raise UsageError(f"environment {workload['environment']}: {' '.join(str(error).split())}") from None

    collective = make_collective(framework, parallelism, group)
    timed = TimedCollective(collective, clock, wait_for(framework)) if collective else None
    learners: list[DqnLearner] = []

    def make_learner(network: Network, generator: np.random.Generator) -> DqnLearner:
        if hyperparameters.defaults == "framework":
            weights = framework_weights(framework, network, int(config["seed"]))
        else:
            weights = dict(initial_weights(network, generator))
        device = "cuda" if resources.get("gpus") else "cpu"
        learners.append(
            make_dqn_learner(framework, execution, network, weights, hyperparameters.learner_settings(), device, timed)
        )
        return learners[0]

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
        timed,
        precise_phases,
    )
    facts = {
        "steps": result.steps,
        "episodes": result.episodes,
        "final_score": result.final_score,
        "best_score": result.best_score,
        "goal_step": result.goal_step,
        "goal_time": recorder.goal_time,
        "goal_wall_time": recorder.goal_wall_time,
        "training_time": recorder.training_time(),
        "setup_time": clock.seconds["setup"],
        "compile_time": clock.seconds["compile"],
        "evaluation_time": recorder.evaluation_time(),
        "resumed_step": recorder.resumed_step,
        "phase_time": switch_cost() * sum(clock.counts.values()),
        "precise_phases": precise_phases,
        "compiled": learners[0].compiled(),
        "collective": collective.name if collective else None,
        "framework_gpu_memory_peak": learners[0].peak_memory(),
    }
    if collective:
        learners.clear()
        collective.close()
    reason = "the loss is no longer a finite number" if result.outcome == "diverged" else None
    return Ended(result.outcome, reason, facts)


class TimedCollective:
    """A collective that records its averages as their own phase; outside the training they belong to the current phase.

    Args:
        wait: waits until a vector of the framework has been computed, so that the phase does not include computing.
    """

    def __init__(self, collective: Collective, clock: PhaseClock, wait: Callable[[Any], None]) -> None:
        self._collective, self._clock, self._wait = collective, clock, wait
        self.rank, self.ranks, self.name = collective.rank, collective.ranks, collective.name
        if hasattr(collective, "wrap"):
            self.wrap = collective.wrap

    def average(self, vector: Any) -> Any:
        self._wait(vector)
        with self._phase():
            averaged = self._collective.average(vector)
            self._wait(averaged)
            return averaged

    def average_array(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        with self._phase():
            return self._collective.average_array(values)

    @contextmanager
    def _phase(self) -> Iterator[None]:
        before = self._clock.phase
        self._clock.switch(before if before in NOT_TRAINING else "communicate")
        yield
        self._clock.switch(before)

    def close(self) -> None:
        self._collective.close()


def before_import(config: dict[str, Any], resources: dict[str, Any], group: Group) -> None:
    """Set the environment variables that a framework reads only once, at its import."""
    framework = config.get("framework")
    if group.ranks > 1:
        named = os.environ.get("CUDA_VISIBLE_DEVICES")
        if named is None and resources.get("gpus"):
            named = ",".join(visible_gpus())
        if len(visible := [each for each in (named or "").split(",") if each]) > 1:  # each rank has one GPU
            os.environ["CUDA_VISIBLE_DEVICES"] = visible[group.local_rank % len(visible)]
        # Milliseconds between two polls for work; the default, 1, is longer than one update of a small network.
        os.environ.setdefault("HOROVOD_CYCLE_TIME", "0.1")
        os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    if framework in frameworks():
        os.environ.update(frameworks()[framework].variables(int(resources["cpus"]), os.environ))
    if framework == "torch" and "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        # Otherwise only the first cell on a machine would include the time of compiling.
        cache = tempfile.mkdtemp(prefix="hpcrl-inductor-")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        atexit.register(shutil.rmtree, cache, ignore_errors=True)
