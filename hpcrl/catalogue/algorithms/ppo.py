"""PPO (Schulman et al. 2017, arXiv 1707.06347): the hyperparameters that a study may set.

The defaults are rl-baselines3-zoo's for CartPole: 500 steps on CartPole-v1 within 100,000 environment steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcrl.catalogue.fields import flag, integer, integers, number
from hpcrl.catalogue.training import OnPolicySettings, workers_fault

TITLE = "PPO"
FAMILY = "on_policy"
FRAMEWORKS = ("numpy", "torch", "tensorflow", "jax", "mxnet")
ACTIONS = ("discrete",)
OBSERVATIONS = ("vector",)
FUSED = True


@dataclass(frozen=True)
class Settings(OnPolicySettings):
    """Hyperparameters. Steps, environments and minibatches are totals over all ranks: each rank takes its share.

    `clip_range` and the learning rate go linearly to their final values.
    """

    total_steps: int = integer(100_000)
    hidden: tuple[int, ...] = integers((64, 64))
    learning_rate: float = number(1e-3, above=0)
    optimizer_epsilon: float = number(1e-5, 0)
    max_gradient_norm: float = number(0.5, 0)
    gamma: float = number(0.98, 0, 1)
    gae_lambda: float = number(0.8, 0, 1)
    clip_range: float = number(0.2, above=0)
    final_clip_range: float = number(0.0, 0)
    clip_values: bool = flag(False)
    entropy_weight: float = number(0.0, 0)
    value_weight: float = number(0.5, 0)
    environments: int = integer(8, 1, 100_000)
    rollout_steps: int = integer(32)
    minibatch_size: int = integer(256)
    epochs: int = integer(20)


def fault(settings: Settings, ranks: int) -> tuple[str, str] | None:
    """Return the setting that `ranks` ranks cannot train with, and why; None if they can."""
    rollout = settings.environments * settings.rollout_steps
    if rollout % settings.minibatch_size:
        return "minibatch_size", (
            f"{settings.minibatch_size}: expected a divisor of a rollout, which is environments x rollout_steps = "
            f"{settings.environments} x {settings.rollout_steps} = {rollout} transitions"
        )
    if settings.normalize_advantages and settings.minibatch_size == 1:
        return (
            "minibatch_size",
            "1: expected at least 2: normalize_advantages makes the advantage of a single transition 0",
        )
    if settings.environments % ranks or settings.minibatch_size % ranks:
        name = "environments" if settings.environments % ranks else "minibatch_size"
        return name, (
            f"{ranks} ranks cannot share environments {settings.environments} and minibatch_size {settings.minibatch_size}: "
            f"expected multiples of {ranks}"
        )
    return workers_fault(settings)
