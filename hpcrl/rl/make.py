"""From the settings of a cell to a training: environments, algorithm, learner, loop. Only this module knows them all."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hpcrl.catalogue.actions import bounds_fault, kind_of_actions
from hpcrl.catalogue.images import kind_of, observation_fault
from hpcrl.catalogue.registry import algorithms
from hpcrl.catalogue.training import COMPILED_IN, has_actors, steps_compiled
from hpcrl.errors import UsageError
from hpcrl.rl.distributed.agreement import check_same_start
from hpcrl.rl.envs.bounded import bounded_environment
from hpcrl.rl.envs.flat import flat_environment
from hpcrl.rl.envs.slow import slow_environment
from hpcrl.rl.frameworks import check_device, configure, dispatch_asynchronously, framework_weights, make_learner
from hpcrl.rl.idle import IdleLearner
from hpcrl.rl.interfaces import Algorithm, Learner, Loop, Space, Weights
from hpcrl.rl.loops.updating import warm_up_acting
from hpcrl.rl.runs import Run
from hpcrl.rl.topologies.acting import ActorRank
from hpcrl.rl.topologies.make import make_actor_rank
from hpcrl.rl.weights import initial_weights


@dataclass(frozen=True)
class Training:
    """A training that may begin; `evaluation_environments` are played side by side."""

    algorithm: Algorithm
    learner: Learner
    loop: Loop
    evaluation_environments: Sequence[Any]
    run: Run
    implementation: Any

    def remarks(self) -> list[str]:
        """Return what a user should know of the training so far, one sentence each."""
        remarks = getattr(self.implementation, "remarks", None)
        return remarks(self.algorithm.settings, self.loop.measures()) if remarks else []


def make_training(
    name: str,
    settings: Any,
    framework: str,
    execution: str,
    make_environment: Callable[[], Any],
    run: Run,
    device: str = "cpu",
) -> Training:
    """Make the training of the algorithm `name` with its Settings.

    All random streams come from the run's seed: initial weights, exploration, replay, starts of evaluations and of
    confirmations of the goal. The environment is seeded once. With several ranks each has its own environment,
    replay and streams; weights stay equal, because gradients are averaged.

    Raises:
        UsageError: the environment is not one that the algorithm can learn, the framework or mode does not exist or is not
            installed, or the ranks cannot share the batch evenly.
        HpcrlError: the ranks start from different weights.
    """
    if wrong := algorithms()[name].fault(settings, run.ranks):
        raise UsageError(f"{name}: {': '.join(wrong)}")
    make_environment = partial(flat_environment, make_environment)
    if algorithms()[name].bounded:
        make_environment = partial(bounded_environment, make_environment)
    evaluation_environments = [make_environment() for _ in range(settings.evaluation_episodes)]
    algorithm = algorithm_on(name, evaluation_environments[0], settings)
    if steps_compiled(getattr(settings, "stepping", None), execution):
        configure(COMPILED_IN)
        check_device(COMPILED_IN, device)
    learner = _learner_of(algorithm, framework, execution, run, device)
    family = algorithms()[name].family
    loops = f"hpcrl.rl.frameworks.{framework}.fused_{family}" if execution == "fused" else f"hpcrl.rl.loops.{family}"
    if has_actors(settings):
        loops = "hpcrl.rl.topologies.make"
    return assemble(algorithm, learner, make_environment, evaluation_environments, run, loops)


def assemble(
    algorithm: Algorithm,
    learner: Learner,
    make_environment: Callable[[], Any],
    evaluation_environments: Sequence[Any],
    run: Run,
    loops: str,
) -> Training:
    """Put a training together; `loops` is the module of its loop. Everything that is compiled is compiled here."""
    if run.collective:
        for group in algorithm.groups:
            check_same_start(run.collective, learner.weights(group))
    run.clock.switch("compile")
    implementation = importlib.import_module(f"hpcrl.rl.algorithms.{algorithm.name}")
    environment = _slowed(make_environment, algorithm.settings)
    loop: Loop = importlib.import_module(loops).make_loop(algorithm, implementation, environment, learner, run)
    return Training(algorithm, learner, loop, evaluation_environments, run, implementation)


def make_exploration(
    name: str, settings: Any, framework: str, execution: str, make_environment: Callable[[], Any], run: Run
) -> ActorRank:
    """Make an actor of a topology, which explores with the weights of the learner's training (:func:`make_training`).

    Raises:
        UsageError: the environment is not one that the algorithm can learn, or the framework is not installed.
        HpcrlError: the learner has other settings or another network.
    """
    environment = _slowed(partial(flat_environment, make_environment), settings)()
    algorithm = algorithm_on(name, environment, settings)
    weights = initial_weights(algorithm, np.random.default_rng(0))
    run.clock.switch("compile")
    implementation = importlib.import_module(f"hpcrl.rl.algorithms.{name}")
    learner = None
    if settings.acting == "framework":
        learner = make_learner(framework, execution, algorithm, weights)
        warm_up_acting(algorithm, implementation, learner)
    return make_actor_rank(algorithm, implementation, environment, weights[algorithm.acts_with], learner, run)


def _slowed(make_environment: Callable[[], Any], settings: Any) -> Callable[[], Any]:
    latency = getattr(settings, "step_latency", 0.0)
    return partial(slow_environment, make_environment, latency) if latency else make_environment


def algorithm_on(name: str, environment: Any, settings: Any) -> Algorithm:
    """Return the algorithm `name` as data, for an environment's space.

    Raises:
        UsageError: the algorithm cannot learn an environment with such observations or actions.
    """
    observed, taken, known = environment.observation_space, environment.action_space, algorithms()[name]
    if (kind := kind_of_actions(taken)) not in known.actions:
        raise UsageError(f"{name}: expected an environment with {' or '.join(known.actions)} actions, got {kind} ones")
    wrong = observation_fault(observed, known.observations)
    if known.bounded and not wrong:
        wrong = bounds_fault(taken)
    if wrong:
        raise UsageError(f"{name}: {wrong}")
    channels = observed.shape[2] if kind_of(observed) == "image" else 0
    limit = getattr(getattr(environment, "spec", None), "max_episode_steps", None)
    bounds: tuple[tuple[float, float], ...] = ()
    if kind == "continuous":
        bounds = tuple((float(low), float(high)) for low, high in zip(taken.low, taken.high, strict=True))
    space = Space(math.prod(observed.shape), len(bounds) or int(taken.n), channels, limit, bounds)
    made: Algorithm = importlib.import_module(f"hpcrl.rl.algorithms.{name}").algorithm(space, settings)
    return made


def _learner_of(algorithm: Algorithm, framework: str, execution: str, run: Run, device: str) -> Learner:
    """Return the learner with its first weights. An algorithm that learns nothing has an idle one."""
    if getattr(algorithm.settings, "unsynchronized", False):
        dispatch_asynchronously(framework)
    if algorithms()[algorithm.name].learns:
        weights = _first_weights(algorithm, framework, run.seed)
        return make_learner(framework, execution, algorithm, weights, device, run.collective)
    configure(framework)
    check_device(framework, device)
    return IdleLearner(algorithm, execution, run.seed)


def _first_weights(algorithm: Algorithm, framework: str, seed: int) -> dict[str, Weights]:
    if algorithm.settings.defaults == "framework":
        return framework_weights(framework, algorithm, seed)
    return initial_weights(algorithm, np.random.default_rng([seed, 0]))
