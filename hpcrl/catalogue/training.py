"""Hyperparameters that the algorithms share; an algorithm's Settings may give them other defaults."""

from __future__ import annotations

from dataclasses import dataclass

from hpcrl.catalogue.fields import choice, flag, integer, integers, number


@dataclass(frozen=True)
class OptimizerSettings:
    """How a learner applies a gradient. A `max_gradient_norm` of 0 turns clipping off.

    `defaults` is ``aligned`` (hpcrl's initial weights and one formula for every framework's optimiser) or ``framework``
    (the framework's own initialiser and optimiser class, unchanged).
    """

    max_gradient_norm: float = number(10.0, 0)
    optimizer: str = choice("adam", "rmsprop")
    optimizer_epsilon: float = number(1e-8, 0)
    rmsprop_decay: float = number(0.99, 0, 1)
    defaults: str = choice("aligned", "framework")


@dataclass(frozen=True)
class TrainingSettings(OptimizerSettings):
    """The length of a training, its network and learning rate, and its evaluations.

    `acting` is ``framework`` (the comparison) or ``numpy`` (on the learner's weights, for speed). An evaluation that
    reaches the goal counts when `confirmation_episodes` from other starts reach it too; with `stop_at_goal` that ends
    the training.
    """

    total_steps: int = integer(50_000)
    hidden: tuple[int, ...] = integers((256, 256))
    learning_rate: float = number(2.3e-3, 0)
    final_learning_rate: float = number(0.0, 0)
    acting: str = choice("framework", "numpy")
    evaluation_interval: int = integer(2_500)
    evaluation_episodes: int = integer(10)
    confirmation_episodes: int = integer(30)
    stop_at_goal: bool = flag(False)
