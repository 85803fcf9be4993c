"""DQN (Mnih et al. 2015, doi 10.1038/nature14236): the hyperparameters that a study may set.

With the defaults DQN reaches 1,000 steps on CartPole-v1. They are rl-baselines3-zoo's, with a linear
learning-rate decay, without which the last policies do not hold.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcrl.catalogue.fields import choice, flag, integer, integers
from hpcrl.catalogue.images import filters_fault
from hpcrl.catalogue.training import (
    STEPPING,
    WORKERS,
    OffPolicySettings,
    many_fault,
    off_policy_fault,
    workers_fault,
)

TITLE = "DQN"
FAMILY = "off_policy"
FRAMEWORKS = ("numpy", "torch", "tensorflow", "jax", "mxnet")
ACTIONS = ("discrete",)
OBSERVATIONS = ("vector", "image")
FUSED = True


@dataclass(frozen=True)
class Settings(OffPolicySettings):
    """Hyperparameters. Steps, batch and environments are totals over all ranks: each rank takes its share.

    It explores in `environments` that step together, in the way `stepping`, and if that is in processes, in as many as `workers` says.
    Each has its own coin for epsilon, or all have a `shared_coin`.
    With images the network begins with one convolution for each number of `filters`; vectors ignore them.
    """

    environments: int = integer(1, 1, 100_000)
    stepping: str = choice(*STEPPING)
    workers: str = choice(*WORKERS)
    shared_coin: bool = flag(False)
    loss: str = choice("huber", "mse")
    filters: tuple[int, ...] = integers((32, 64, 64))


def fault(settings: Settings, ranks: int) -> tuple[str, str] | None:
    """Return the setting with which `ranks` ranks cannot learn, and why; None if they can."""
    if wrong := filters_fault(settings.filters):
        return "filters", wrong
    return workers_fault(settings) or many_fault(settings, ranks) or off_policy_fault(settings, ranks)
