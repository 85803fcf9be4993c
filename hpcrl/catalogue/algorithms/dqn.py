"""DQN (Mnih et al. 2015, doi 10.1038/nature14236): the hyperparameters that a study may set.

With the defaults DQN reaches 1,000 steps on CartPole-v1. They are rl-baselines3-zoo's, with a linear
learning-rate decay, without which the last policies do not hold.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcrl.catalogue.fields import choice
from hpcrl.catalogue.training import OffPolicySettings, off_policy_fault

TITLE = "DQN"
FAMILY = "off_policy"
FRAMEWORKS = ("numpy", "torch", "tensorflow", "jax", "mxnet")
ACTIONS = "discrete"
OBSERVATIONS = "vector"
FUSED = True


@dataclass(frozen=True)
class Settings(OffPolicySettings):
    """Hyperparameters. Steps and batch are totals over all ranks: each rank takes its share."""

    loss: str = choice("huber", "mse")


fault = off_policy_fault
