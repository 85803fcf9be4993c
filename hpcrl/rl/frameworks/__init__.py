"""One learner per framework and algorithm; each is imported only by the cell that uses it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from hpcrl.catalogue.registry import frameworks
from hpcrl.errors import UsageError, suggestion
from hpcrl.rl.distributed.group import Group
from hpcrl.rl.learner import Collective, DqnLearner, DqnSettings, Network, Weights

# These frameworks read some settings only once, at their first computation.
_CONFIGURED = frozenset({"torch", "tensorflow", "jax"})


def configure(framework: str) -> None:
    """Apply a framework's settings, before ranks are joined, weights are drawn, or anything else is computed.

    Every other function here calls it first; a second call changes nothing.

    Raises:
        UsageError: the framework is not installed here.
    """
    if framework in _CONFIGURED:
        _module(framework, "runtime").configure()


def make_dqn_learner(
    framework: str,
    execution: str,
    network: Network,
    weights: Weights,
    settings: DqnSettings,
    device: str = "cpu",
    collective: Collective | None = None,
) -> DqnLearner:
    """Build the DQN learner of a framework.

    Raises:
        UsageError: there is no such framework or mode, or the framework is not installed here.
    """
    if framework not in frameworks():
        raise UsageError(f"no framework {framework!r}; {suggestion(framework, frameworks())}")
    modes = frameworks()[framework].modes
    if execution not in modes:
        raise UsageError(f"{framework} has no execution mode {execution!r}; {suggestion(execution, modes)}")
    configure(framework)
    learner: DqnLearner = _module(framework, "dqn").Learner(network, weights, settings, execution, device, collective)
    return learner


def framework_weights(framework: str, network: Network, seed: int) -> Weights:
    """Draw initial weights with the framework's own default initialiser (`defaults: framework`)."""
    if framework == "numpy":
        raise UsageError("numpy: has no default initialiser: leave numpy out if `defaults` is framework")
    configure(framework)
    weights: Weights = _module(framework, "dqn").framework_weights(network, seed)
    return weights


def make_collective(framework: str, parallelism: str, group: Group) -> Collective | None:
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
    made: Collective = getattr(_module(framework, "collectives"), parallelism)(group)
    return made


def wait_for(framework: str) -> Callable[[Any], None]:
    """Return a function that waits until a vector of the framework has been computed, for asynchronous frameworks."""
    if framework not in frameworks():
        return lambda vector: None
    wait: Callable[[Any], None] = _module(framework, "runtime").wait
    return wait


def _module(framework: str, name: str) -> Any:
    try:
        return importlib.import_module(f"hpcrl.rl.frameworks.{framework}.{name}")
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{framework}: {error.name} is not installed in this environment: run the cell in its own environment (hpcrl env create)"
        ) from None
