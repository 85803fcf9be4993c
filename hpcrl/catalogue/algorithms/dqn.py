"""DQN (Mnih et al. 2015, doi 10.1038/nature14236): the hyperparameters that a study may set.

With the defaults DQN reaches 1,000 steps on CartPole-v1. They are rl-baselines3-zoo's, with a linear
learning-rate decay, without which the last policies do not hold.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcrl.catalogue.fields import choice, flag, integer, number
from hpcrl.catalogue.training import TrainingSettings

TITLE = "DQN"
FAMILY = "off_policy"
FRAMEWORKS = ("numpy", "torch", "tensorflow", "jax", "mxnet")
ACTIONS = "discrete"
OBSERVATIONS = "vector"
FUSED = True


@dataclass(frozen=True)
class Settings(TrainingSettings):
    """Hyperparameters. Steps and batch are totals over all ranks: each rank takes its share."""

    gamma: float = number(0.99, 0, 1)
    loss: str = choice("huber", "mse")
    double: bool = flag(False)
    dueling: bool = flag(False)
    batch_size: int = integer(64)
    buffer_size: int = integer(100_000)
    learning_starts: int = integer(1_000)
    target_interval: int = integer(10)
    train_interval: int = integer(256)
    updates: int = integer(128)
    initial_epsilon: float = number(1.0, 0, 1)
    final_epsilon: float = number(0.04, 0, 1)
    exploration_fraction: float = number(0.16, 0, 1)


def fault(settings: Settings, ranks: int) -> tuple[str, str] | None:
    """Return the setting that `ranks` ranks cannot train with, and why; None if they can."""
    if settings.batch_size > settings.buffer_size:
        return "batch_size", f"{settings.batch_size}: expected at most buffer_size, which is {settings.buffer_size}"
    if settings.batch_size % ranks == 0 and min(settings.train_interval, settings.target_interval) >= ranks:
        return None
    return "batch_size", (
        f"{ranks} ranks cannot share batch_size {settings.batch_size}, train_interval {settings.train_interval} and "
        f"target_interval {settings.target_interval}: expected a multiple of {ranks} for the first, at least {ranks} for the others"
    )
