"""Run a cell of built-in training: from its configuration to a trained agent and the facts for its record."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from hpcrl.catalogue.environments import option_names
from hpcrl.catalogue.fields import check, names
from hpcrl.catalogue.registry import algorithms, frameworks
from hpcrl.catalogue.training import has_actors
from hpcrl.errors import UsageError
from hpcrl.formats.facts import BEST_POSSIBLE, Asked
from hpcrl.rl.agents import Agent
from hpcrl.rl.distributed.collective import Collective
from hpcrl.rl.distributed.group import Group
from hpcrl.rl.envs.bounded import Bounded
from hpcrl.rl.envs.checking import check as check_environment
from hpcrl.rl.envs.closing import Closing
from hpcrl.rl.envs.make import gymnasium_environment
from hpcrl.rl.frameworks import finish, make_collective
from hpcrl.rl.make import Training, make_exploration, make_training
from hpcrl.rl.runs import Result, Run
from hpcrl.rl.topologies.learning import LearnerLoop
from hpcrl.rl.topologies.make import join
from hpcrl.rl.topologies.ports import GRACE_SECONDS, RankGone
from hpcrl.rl.train import best_possible, train
from hpcrl.run.heap import keep_freed_memory
from hpcrl.run.profiling import Profiling
from hpcrl.run.recorder import Recorder
from hpcrl.run.search import Trial
from hpcrl.telemetry.phases import PhaseClock, switch_cost
from hpcrl.telemetry.provenance import visible_gpus

# Why a learner stopped without its actors.
_NO_ANSWER = f"after a signal an actor did not answer for {GRACE_SECONDS:g} s"


@dataclass(frozen=True)
class Ended:
    """The outcome of a workload, its reason, the facts for the footer of its record, and the trained agents to keep.

    `leaves_others` tells that other ranks still wait for this one: the launcher must end them.
    """

    outcome: str
    reason: str | None
    facts: dict[str, Any]
    agents: Mapping[str, Agent] = field(default_factory=dict)
    leaves_others: bool = False


@dataclass(frozen=True)
class TrainingCell:
    """What a cell trains: the study's `workload`, the cell's own `config`, what it asked for, and the return that counts as solved."""

    workload: dict[str, Any]
    config: dict[str, Any]
    asked: Asked
    goal: float | None = None
    precise_phases: bool = False


def train_cell(
    cell: TrainingCell,
    recorder: Recorder,
    clock: PhaseClock,
    stop: Callable[[], bool],
    checkpoint_file: Path,
    group: Group,
    trial: Trial | None = None,
    profiling: Profiling | None = None,
) -> Ended:
    """Train the agent of one cell in this process, together with the cell's other ranks if there are any.

    Args:
        profiling: looks at the training alone, after imports and compiling.

    Raises:
        UsageError: the cell cannot run here: a framework is not installed, a GPU is missing, or settings are wrong.
        HpcrlError: the ranks do not find each other or do not agree.
    """
    workload, config, asked = cell.workload, cell.config, cell.asked
    framework = str(config["framework"])
    execution = str(config.get("execution", frameworks()[framework].default_mode))
    name, settings = _settings_of(workload, config)
    acts = has_actors(settings)
    _check_place(framework, asked, group, acts)
    limit = config.get("max_episode_steps", workload.get("max_episode_steps"))
    environment = str(config.get("environment", workload.get("environment")))
    options = _options_of(workload, config, settings, environment)
    make_environment = Closing(partial(gymnasium_environment, environment, limit, options))
    if ":" in environment and (wrong := check_environment(environment, options)):
        raise UsageError(wrong)
    world = join(group) if acts else None
    collective = make_collective(framework, asked.parallelism, group, clock)
    marks = profiling.marks() if profiling else ()
    run = Run(int(config["seed"]), recorder, clock, collective, cell.precise_phases, world, stop=stop, marks=marks)
    if trial:
        run = replace(run, prune=trial.prune)
    if acts and group.rank:
        actor = make_exploration(name, settings, framework, execution, make_environment, run)
        with profiling.acting() if profiling else nullcontext():
            explored = actor.explore(stop)
        _close(make_environment, framework, recorder)
        return Ended(explored.outcome, None, {"steps": explored.steps, "episodes": explored.episodes})
    try:
        training = make_training(
            name, settings, framework, execution, make_environment, run, "cuda" if asked.gpus else "cpu"
        )
    except RankGone:
        return Ended("preempted", f"{_NO_ANSWER}: the training had not begun", {}, leaves_others=True)
    with profiling.training() if profiling else nullcontext():
        result = train(training, cell.goal, stop, checkpoint_file)
    facts = _facts_of(training, result, recorder, clock, collective)
    if run.rank == 0 and (best := best_possible(training)) is not None:
        recorder.value({BEST_POSSIBLE: best})
    agents = _agents_of(training, result, environment, options, limit)
    _close(make_environment, framework, recorder)
    leaves_others = isinstance(training.loop, LearnerLoop) and training.loop.gave_up
    del training  # the learner must be gone before its collective closes
    if collective:
        collective.close()
    reason = "the loss is no longer a finite number" if result.outcome == "diverged" else None
    if trial and result.outcome == "pruned":
        reason = trial.pruned_because()
    if leaves_others and result.outcome == "completed":
        recorder.event(f"{_NO_ANSWER}: the training was complete, and the launcher ends the actors")
    if leaves_others and result.outcome == "preempted":
        reason = f"{_NO_ANSWER}: a checkpoint was kept"
    return Ended(result.outcome, reason, facts, agents, leaves_others)


def _check_place(framework: str, asked: Asked, group: Group, acts: bool) -> None:
    """Check that a cell has the GPU and the ranks that it asks for.

    Args:
        acts: rank 0 learns and the others are its actors.

    Raises:
        UsageError: it has not.
    """
    on_gpus = "cuda" in frameworks()[framework].devices
    # The GPU is the learner's: an actor's node needs none.
    if asked.gpus and not (acts and group.rank) and (not on_gpus or not visible_gpus()):
        what = "no NVIDIA GPU is visible here" if on_gpus else f"{frameworks()[framework].title} supports the CPU only"
        raise UsageError(f"this cell asks for {asked.gpus} GPUs, but {what}: run it on a node with GPUs")
    if group.ranks > 1 and asked.parallelism == "none" and not acts:
        raise UsageError(
            f"this cell has {group.ranks} ranks, but `parallelism` is none: set it to horovod or native in the study"
        )
    if (acts or asked.parallelism != "none") and group.ranks != asked.tasks:
        raise UsageError(f"expected {asked.tasks} ranks, got {group.ranks}: start all of them with --ranks")


def _facts_of(
    training: Training, result: Result, recorder: Recorder, clock: PhaseClock, collective: Collective | None
) -> dict[str, Any]:
    """Return what the end of a rank's record says of its training."""
    loop = training.loop
    return {
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
        "precise_phases": training.run.precise_phases,
        "compiled": training.learner.compiled(),
        "collective": collective.name if collective else None,
        "updates": getattr(loop, "updates", None),  # of off-policy algorithms
        "messages": json.dumps(loop.facts()) if isinstance(loop, LearnerLoop) else None,
        "framework_gpu_memory_peak": training.learner.peak_memory(),
    }


def _agents_of(
    training: Training, result: Result, environment: str, options: dict[str, Any], limit: int | None
) -> dict[str, Agent]:
    """Return the agents to save, by which of them they are: `best` and `last`."""
    played = training.evaluation_environments[0]
    stretched = (played.low, played.high) if isinstance(played, Bounded) else None
    return {
        which: Agent(
            algorithm=training.algorithm,
            weights=dict(policy.weights),
            moments=policy.moments,
            environment=environment,
            options=options,
            max_episode_steps=limit,
            step=policy.step,
            score=policy.score,
            stretched=stretched,
        )
        for which, policy in result.policies.items()
    }


def _close(environments: Closing, framework: str, recorder: Recorder) -> None:
    """Close the environments, and end the framework's own processes. An environment that fails here fails nothing else."""
    for fault in environments.close():
        recorder.event(f"an environment could not be closed: {fault}")
    finish(framework)


def _settings_of(workload: dict[str, Any], config: dict[str, Any]) -> tuple[str, Any]:
    """Return the name of a cell's algorithm and its settings."""
    algorithm = algorithms()[str(config.get("algorithm", workload.get("algorithm")))]
    known = names(algorithm.settings)
    values = dict(workload.get("hyperparameters", {})) | {key: value for key, value in config.items() if key in known}
    return algorithm.name, check(algorithm.name, algorithm.settings, values)


def _options_of(workload: dict[str, Any], config: dict[str, Any], settings: Any, environment: str) -> dict[str, Any]:
    """Return the options of a cell's environment. An axis that is a hyperparameter is no option."""
    given: dict[str, Any] = workload.get("environment_options") or {}
    axes = option_names(environment, given) - set(names(type(settings)))
    return given | {key: value for key, value in config.items() if key in axes}


def before_import(used: Sequence[str], asked: Asked, group: Group, has_learner: bool = False) -> None:
    """Set the environment variables that frameworks read only once, at their import, and keep freed memory.

    Args:
        used: the frameworks of the cell, of which those that hpcrl does not know are ignored.
        has_learner: rank 0 learns and the others are its actors. Then the GPU is rank 0's, and the others see none.
    """
    if group.ranks > 1:
        named = os.environ.get("CUDA_VISIBLE_DEVICES")
        if named is None and asked.gpus:
            named = ",".join(visible_gpus())
        if len(visible := [gpu for gpu in (named or "").split(",") if gpu]) > 1:  # each rank has one GPU
            os.environ["CUDA_VISIBLE_DEVICES"] = visible[group.local_rank % len(visible)]
    if has_learner and group.rank:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    known = [frameworks()[name] for name in used if name in frameworks()]
    if not known:
        return
    keep_freed_memory()
    if group.ranks > 1:
        # Milliseconds between two polls for work; the default, 1, is longer than one update of a small network.
        os.environ.setdefault("HOROVOD_CYCLE_TIME", "0.1")
        # A learner and its actors sleep between two looks for a message, so that none keeps a core busy. An actor looks after every step: if it
        # gave its core away there, it would wait until the learner's updates or another actor give it back.
        os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "0" if has_learner else "1")
    for framework in known:
        os.environ.update(framework.variables(asked.cpus, os.environ))
    for name in (name for framework in known for name in framework.private_directories):
        if name not in os.environ:
            os.environ[name] = directory = tempfile.mkdtemp(prefix="hpcrl-cache-")
            atexit.register(shutil.rmtree, directory, ignore_errors=True)
