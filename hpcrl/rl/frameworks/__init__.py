"""One learner per framework, and one page per framework and algorithm; each is imported only by the cell that uses it."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hpcrl.catalogue.registry import algorithms, frameworks
from hpcrl.errors import UsageError, suggestion
from hpcrl.rl.distributed.collective import Collective
from hpcrl.rl.distributed.group import Group
from hpcrl.rl.interfaces import Algorithm, Learner, Weights
from hpcrl.rl.weights import with_scales
from hpcrl.telemetry.phases import PhaseClock


def configure(framework: str) -> None:
    """Apply a framework's settings, before ranks are joined, weights are drawn, or anything else is computed.

    Some frameworks read settings only once, at their first computation. Every other function here calls this first; a
    second call changes nothing.

    Raises:
        UsageError: the framework is not installed here.
    """
    _module(framework, "runtime").configure()


def dispatch_asynchronously(framework: str) -> None:
    """Let calls of a framework return before they are computed, also on the CPU, if it can; before it computes anything."""
    getattr(_module(framework, "runtime"), "dispatch_asynchronously", lambda: None)()


def finish(framework: str) -> None:
    """Let a framework, if it was used, end processes that it started for itself, when the training is over."""
    runtime = sys.modules.get(f"hpcrl.rl.frameworks.{framework}.runtime")
    getattr(runtime, "finish", lambda: None)()


def check_device(framework: str, device: str) -> None:
    """Make sure that a framework finds the GPU of a cell that asks for one, where it has no learner that would look.

    Raises:
        UsageError: it finds none, or is not installed here.
    """
    if device != "cpu":
        _module(framework, "runtime").check_device(device)


def make_learner(
    framework: str,
    execution: str,
    algorithm: Algorithm,
    weights: dict[str, Weights],
    device: str = "cpu",
    collective: Collective | None = None,
) -> Learner:
    """Build the learner of a framework, with the initial weights of each group.

    Raises:
        UsageError: there is no such framework or mode, it does not have the algorithm or its observations, or it is not installed
            here.
    """
    if framework not in frameworks():
        raise UsageError(f"no framework {framework!r}; {suggestion(framework, frameworks())}")
    known = frameworks()[framework].modes
    if execution not in known:
        raise UsageError(f"{framework} has no execution mode {execution!r}; {suggestion(execution, known)}")
    if framework not in algorithms()[algorithm.name].frameworks:
        raise UsageError(f"{framework} has no {algorithm.name}")
    _check_observations(framework, algorithm)
    configure(framework)
    core = _module(framework, "core")
    page = _module(framework, algorithm.name, getattr(core, "PAGES", None))
    learner: Learner = core.Learner(algorithm, page, weights, execution, device, collective)
    return learner


def framework_weights(framework: str, algorithm: Algorithm, seed: int) -> dict[str, Weights]:
    """Draw the initial weights of every group as a framework's own layers do by default.

    Raises:
        UsageError: the framework is not installed here, or has no such layers of its own.
    """
    _check_observations(framework, algorithm)
    configure(framework)
    draw = _module(framework, "layers").framework_weights
    weights: dict[str, Weights] = {}
    for group, networks in algorithm.groups.items():
        weights[group] = {}
        for network in networks:
            weights[group] |= with_scales(network, draw(network, seed))
            seed += len(network.shapes) + 1
    return weights


def save_weights(framework: str, beside: Path, weights: Weights) -> Path | None:
    """Write weights in the own format of a framework, beside another file; None if hpcrl writes none for it (NumPy, TensorFlow).

    Raises:
        UsageError: the framework is not installed here.
    """
    if not find_spec(f"hpcrl.rl.frameworks.{framework}.saving"):
        return None
    module = _module(framework, "saving")
    path = beside.with_suffix(module.SUFFIX)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        module.save(temporary, weights)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _check_observations(framework: str, algorithm: Algorithm) -> None:
    known = frameworks()[framework]
    if algorithm.space.kind not in known.observations:
        raise UsageError(f"{framework}: hpcrl has no convolutions in {known.title}, and this environment shows images")


def make_collective(framework: str, parallelism: str, group: Group, clock: PhaseClock) -> Collective | None:
    """Join the ranks of a cell; None if it has only one.

    Raises:
        UsageError: the framework does not have this parallelism, or its packages are not installed here.
        HpcrlError: the ranks cannot connect.
    """
    if parallelism == "none":
        return None
    known = frameworks()[framework].parallelism
    if parallelism not in known:
        raise UsageError(f"{framework}: has no parallelism {parallelism!r}; {suggestion(parallelism, known)}")
    configure(framework)
    collective: Collective = getattr(_module(framework, "collectives"), parallelism)(group, clock)
    return collective


def _module(framework: str, name: str, package: str | None = None) -> Any:
    try:
        return importlib.import_module(f"{package or f'hpcrl.rl.frameworks.{framework}'}.{name}")
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{framework}: {error.name} is not installed in this environment: run the cell in its own environment (hpcrl env create)"
        ) from None
