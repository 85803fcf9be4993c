"""Rainbow (Hessel et al. 2018, arXiv 1710.02298): the hyperparameters that a study may set.

Each of its six parts is a switch: `double`, `dueling`, `prioritized`, `noisy`, `distributional`, and `n_step` above 1. The
defaults are for CartPole. The scale of noise is that of Tianshou's test of Rainbow. A window is longer than the paper's three
steps: a fall is only learned once it has come back, window by window and copy by copy, to the step that caused it.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcrl.catalogue.fields import flag, integer, integers, number
from hpcrl.catalogue.training import ManySettings, many_fault, off_policy_fault

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
    learning_rate: float = number(1e-3, above=0)
    final_learning_rate: float = number(1e-3, 0)
    optimizer_epsilon: float = number(1.5e-4, 0)
    buffer_size: int = integer(20_000)
    target_interval: int = integer(200)
    train_interval: int = integer(2)
    updates: int = integer(1)
    double: bool = flag(True)
    dueling: bool = flag(True)
    n_step: int = integer(10, 1, 1_000)
    prioritized: bool = flag(True)
    priority_exponent: float = number(0.5, 0)
    initial_importance: float = number(0.4, 0, 1)
    noisy: bool = flag(True)
    noise_scale: float = number(0.1, above=0)
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
    return many_fault(settings, ranks) or off_policy_fault(settings, ranks) or _window_fault(settings, ranks)


def _window_fault(settings: Settings, ranks: int) -> tuple[str, str] | None:
    if settings.n_step > (share := settings.buffer_size // ranks):
        what = f"a rank's share of buffer_size {settings.buffer_size}" if ranks > 1 else "buffer_size"
        return "n_step", f"{settings.n_step}: expected at most {what}, which is {share}"
    # Each explorer has its own windows: until all of them have taken n_step steps, a replay may be empty.
    explorers = max(ranks, settings.actors, settings.environments)
    first_update = -(-settings.learning_starts // settings.train_interval) * settings.train_interval
    if settings.train_unit == "steps" and first_update < (first := settings.n_step * explorers):
        of_explorers = f" of each of {explorers} explorers" if explorers > 1 else ""
        return "learning_starts", (
            f"{settings.learning_starts}: expected at least {first}, the steps of the first whole window (n_step "
            f"{settings.n_step}{of_explorers}): before them the replay may be empty"
        )
    return None


def episode_fault(settings: Settings, limit: int) -> tuple[str, str] | None:
    """Return the setting that does not suit episodes of at most `limit` steps, and why; None if all do."""
    if settings.n_step > limit:
        return "n_step", f"{settings.n_step}: expected at most {limit}, the steps of the longest episode"
    return None
