"""Rainbow (Hessel et al. 2018, arXiv 1710.02298): the hyperparameters that a study may set.

Each of its six parts is a switch: `double`, `dueling`, `prioritized`, `noisy`, `distributional`, and `n_step` above 1. The
defaults are for CartPole. The scale of noise is that of Tianshou's test of Rainbow; with 0.5, which is usual for Atari, the
policy stays at returns of 100 to 150 on CartPole-v1.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcrl.catalogue.fields import flag, integer, integers, number
from hpcrl.catalogue.training import ManySettings, many_fault, off_policy_fault
from hpcrl.errors import count

TITLE = "Rainbow"
FAMILY = "off_policy"
FRAMEWORKS = ("numpy", "torch", "tensorflow", "jax", "mxnet")
ACTIONS = ("discrete",)
OBSERVATIONS = ("vector",)
FUSED = True


@dataclass(frozen=True)
class Settings(ManySettings):
    """Hyperparameters. Steps, batch and environments are totals over all ranks: each rank takes its share.

    The `atoms` of a distribution are spread evenly from `value_minimum` to `value_maximum`, which must hold every
    discounted return. Without `noisy`, exploration is epsilon-greedy.
    """

    total_steps: int = integer(25_000)
    hidden: tuple[int, ...] = integers((128, 128))
    learning_rate: float = number(1e-3, 0)
    final_learning_rate: float = number(1e-3, 0)
    optimizer_epsilon: float = number(1.5e-4, 0)
    buffer_size: int = integer(20_000)
    target_interval: int = integer(500)
    train_interval: int = integer(2)
    updates: int = integer(1)
    double: bool = flag(True)
    dueling: bool = flag(True)
    n_step: int = integer(3, 1, 1_000)
    prioritized: bool = flag(True)
    priority_exponent: float = number(0.5, 0)
    initial_importance: float = number(0.4, 0, 1)
    noisy: bool = flag(True)
    noise_scale: float = number(0.1, 0)
    distributional: bool = flag(True)
    atoms: int = integer(51, 2, 1_001)
    value_minimum: float = number(0.0)
    value_maximum: float = number(100.0)


def note(settings: Settings, least: float, most: float) -> str | None:
    """Say that the support cannot hold discounted returns from `least` to `most`; None if it can."""
    low, high = settings.value_minimum, settings.value_maximum
    if not settings.distributional or (low <= least and most <= high):
        return None
    return (
        f"Rainbow's support from {low:g} to {high:g} does not hold the discounted returns, which can be from {least:g} to {most:g} "
        f"at gamma {settings.gamma:g}: set value_minimum and value_maximum"
    )


def fault(settings: Settings, ranks: int) -> tuple[str, str] | None:
    """Return the setting that `ranks` ranks cannot train with, and why; None if they can."""
    if settings.distributional and settings.value_maximum <= settings.value_minimum:
        return (
            "value_maximum",
            f"{settings.value_maximum}: expected more than value_minimum, which is {settings.value_minimum}",
        )
    if settings.n_step > settings.buffer_size:
        return "n_step", f"{settings.n_step}: expected at most buffer_size, which is {settings.buffer_size}"
    return many_fault(settings, ranks) or off_policy_fault(settings, ranks) or _start_fault(settings, ranks)


def _start_fault(settings: Settings, ranks: int) -> tuple[str, str] | None:
    """Say that the first update would come before a window is complete."""
    streams = max(ranks, settings.environments, settings.actors)
    first = -(-settings.learning_starts // settings.train_interval) * settings.train_interval
    if settings.train_unit == "episodes" or first >= settings.n_step * streams:
        return None
    return "learning_starts", (
        f"{settings.learning_starts}: expected at least {settings.n_step * streams}: n_step ({settings.n_step}) steps in each of "
        f"{count(streams, 'environment')} before there is anything to learn from"
    )
