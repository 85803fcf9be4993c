"""DQN (Mnih et al. 2015, doi 10.1038/nature14236): the hyperparameters that a study may set.

With the defaults DQN reaches 1,000 steps on CartPole-v1. They are rl-baselines3-zoo's, with a linear
learning-rate decay, without which the last policies do not hold.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcrl.catalogue.fields import choice, flag, integer, integers, number

TITLE = "DQN"
FAMILY = "off_policy"
FRAMEWORKS = ("numpy", "torch", "tensorflow", "jax", "mxnet")
ACTIONS = "discrete"
OBSERVATIONS = "vector"


@dataclass(frozen=True)
class LearnerSettings:
    """Settings of a learner besides its network: loss, optimiser, and whose formulae are used.

    `defaults` is ``aligned`` (hpcrl's initial weights and one formula for every framework's optimiser) or ``framework``
    (the framework's own initialiser and optimiser class, unchanged).
    """

    gamma: float = number(0.99, 0, 1)
    max_gradient_norm: float = number(10.0, 0)
    loss: str = choice("huber", "mse")
    double: bool = flag(False)
    optimizer: str = choice("adam", "rmsprop")
    optimizer_epsilon: float = number(1e-8, 0)
    rmsprop_decay: float = number(0.99, 0, 1)
    defaults: str = choice("aligned", "framework")


@dataclass(frozen=True)
class Settings(LearnerSettings):
    """Hyperparameters. Steps and batch are totals over all ranks: each rank takes its share.

    `acting` is ``framework`` (the comparison) or ``numpy`` (on the learner's weights, for speed). An evaluation that
    reaches the goal counts when `confirmation_episodes` from other starts reach it too; with `stop_at_goal` that ends
    the training. A `max_gradient_norm` of 0 turns clipping off.
    """

    total_steps: int = integer(50_000)
    hidden: tuple[int, ...] = integers((256, 256))
    learning_rate: float = number(2.3e-3, 0)
    final_learning_rate: float = number(0.0, 0)
    batch_size: int = integer(64)
    buffer_size: int = integer(100_000)
    learning_starts: int = integer(1_000)
    target_interval: int = integer(10)
    train_interval: int = integer(256)
    updates: int = integer(128)
    initial_epsilon: float = number(1.0, 0, 1)
    final_epsilon: float = number(0.04, 0, 1)
    exploration_fraction: float = number(0.16, 0, 1)
    dueling: bool = flag(False)
    acting: str = choice("framework", "numpy")
    evaluation_interval: int = integer(2_500)
    evaluation_episodes: int = integer(10)
    confirmation_episodes: int = integer(30)
    stop_at_goal: bool = flag(False)


def share_fault(settings: Settings, ranks: int) -> str | None:
    """Say why `ranks` ranks cannot share batch and intervals evenly; None if they can."""
    if settings.batch_size % ranks == 0 and min(settings.train_interval, settings.target_interval) >= ranks:
        return None
    return (
        f"{ranks} ranks cannot share batch_size {settings.batch_size}, train_interval {settings.train_interval} and "
        f"target_interval {settings.target_interval}: expected a multiple of {ranks} for the first, at least {ranks} for the others"
    )
