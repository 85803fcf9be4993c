"""One learner per framework and algorithm; each is imported only by the cell that uses it."""

from __future__ import annotations

from typing import Any

from hpcrl.errors import UsageError, suggestion
from hpcrl.rl.learner import DqnLearner, Network

# Framework -> execution modes. A mode is the same learner, wrapped by the framework's compiler or not.
MODES: dict[str, tuple[str, ...]] = {
    "numpy": ("eager",),
    "torch": ("eager", "lazy"),
    "jax": ("eager", "lazy"),
}


def make_dqn_learner(
    framework: str,
    execution: str,
    network: Network,
    weights: dict[str, Any],
    settings: dict[str, Any],
    device: str,
) -> DqnLearner:
    """Build the DQN learner of a framework.

    Raises:
        UsageError: there is no such framework or mode, or the framework is not installed here.
    """
    if framework not in MODES:
        raise UsageError(f"no framework {framework!r}; {suggestion(framework, MODES)}")
    if execution not in MODES[framework]:
        raise UsageError(f"{framework} has no execution mode {execution!r}; {suggestion(execution, MODES[framework])}")
    try:
        if framework == "numpy":
            from hpcrl.rl.frameworks.numpy.dqn import NumpyDqn

            return NumpyDqn(network, weights, **settings)
        if framework == "torch":
            from hpcrl.rl.frameworks.torch.dqn import TorchDqn

            return TorchDqn(network, weights, lazy=execution == "lazy", device=device, **settings)
        from hpcrl.rl.frameworks.jax.dqn import JaxDqn

        return JaxDqn(network, weights, lazy=execution == "lazy", device=device, **settings)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{framework}: {error.name} is not installed in this environment: run the cell in its own (hpcrl env create)"
        ) from None
