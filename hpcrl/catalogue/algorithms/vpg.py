"""VPG, the vanilla policy gradient: REINFORCE with generalised advantages, in the form of OpenAI's Spinning Up.

Williams 1992, doi 10.1007/BF00992696; Schulman et al. 2016, arXiv 1506.02438. The defaults are Spinning Up's.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcrl.catalogue.fields import choice, flag, integer, integers, number, same_number
from hpcrl.catalogue.training import OnPolicySettings, workers_fault

TITLE = "VPG"
FAMILY = "on_policy"
FRAMEWORKS = ("numpy", "torch", "tensorflow", "jax", "mxnet")
ACTIONS = ("discrete", "continuous")
OBSERVATIONS = ("vector",)
FUSED = True


@dataclass(frozen=True)
class Settings(OnPolicySettings):
    """Hyperparameters. Steps and environments are totals over all ranks: each rank takes its share.

    A rollout is one batch: one step of the policy, and `value_steps` of the values, each at a learning rate that goes linearly to its
    final value, if that is given. With `unsynchronized`, a fault of published code, no phase waits for its own work, and JAX dispatches asynchronously on the CPU, too. Continuous actions have standard deviations that begin at exp(`initial_log_std`).
    """

    total_steps: int = integer(200_000)
    hidden: tuple[int, ...] = integers((64, 64))
    activation: str = choice("tanh", "relu")
    learning_rate: float = number(3e-4, above=0)
    final_learning_rate: float | None = same_number(0)
    value_learning_rate: float = number(1e-3, above=0)
    final_value_learning_rate: float | None = same_number(0)
    value_steps: int = integer(80, 1, 100_000)
    max_gradient_norm: float = number(0.0, 0)
    gae_lambda: float = number(0.97, 0, 1)
    rollout_steps: int = integer(4_000)
    evaluation_interval: int = integer(4_000)
    initial_log_std: float = number(-0.5, -20, 5)
    unsynchronized: bool = flag(False)

    @property
    def epochs(self) -> int:
        """Return how often a rollout is learnt from."""
        return 1

    @property
    def minibatch_size(self) -> int:
        """Return the transitions of a rollout."""
        return self.environments * self.rollout_steps

    @property
    def returns_lambda(self) -> float:
        """Return 1: values learn the discounted rewards of the rest of an episode."""
        return 1.0


def fault(settings: Settings, ranks: int) -> tuple[str, str] | None:
    """Return the setting that `ranks` ranks cannot train with, and why; None if they can."""
    if settings.environments % ranks:
        return (
            "environments",
            f"{ranks} ranks cannot share environments {settings.environments}: expected a multiple of {ranks}",
        )
    return workers_fault(settings)
