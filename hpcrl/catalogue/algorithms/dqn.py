"""DQN (Mnih et al. 2015, doi 10.1038/nature14236): the hyperparameters that a study may set.

With the defaults DQN reaches 1,000 steps on CartPole-v1. They are rl-baselines3-zoo's, with a linear
learning-rate decay, without which the last policies do not hold.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcrl.catalogue.fields import choice, flag, integers
from hpcrl.catalogue.images import filters_fault
from hpcrl.catalogue.training import ManySettings, many_fault, off_policy_fault

TITLE = "DQN"
FAMILY = "off_policy"
FRAMEWORKS = ("numpy", "torch", "tensorflow", "jax", "mxnet")
ACTIONS = ("discrete",)
OBSERVATIONS = ("vector", "image")
FUSED = True


@dataclass(frozen=True)
class Settings(ManySettings):
    """Hyperparameters. Steps, batch and environments are totals over all ranks: each rank takes its share.

    Each of the `environments` has its own coin for epsilon, or all have a `shared_coin`.
    With images the network begins with one convolution for each number of `filters`; vectors ignore them.
    """

    shared_coin: bool = flag(False)
    loss: str = choice("huber", "mse")
    filters: tuple[int, ...] = integers((32, 64, 64))


def fault(settings: Settings, ranks: int) -> tuple[str, str] | None:
    """Return the setting with which `ranks` ranks cannot learn, and why; None if they can."""
    if wrong := filters_fault(settings.filters):
        return "filters", wrong
    return many_fault(settings, ranks) or off_policy_fault(settings, ranks)
