"""Schedules: values that change with the environment step."""

from __future__ import annotations

from typing import Any

from hpcrl.rl.interfaces import Step


def linear(start: float, end: float, steps: float, step: int) -> float:
    """Go from `start` to `end` over `steps` steps, then stay."""
    if steps <= 0 or step >= steps:
        return end
    return start + (end - start) * step / steps


def rates_of(step: Step, settings: Any) -> tuple[float, float]:
    """Return the first and the last learning rate of a gradient step; without a final one the rate stays."""
    first, last = getattr(settings, step.rate), getattr(settings, f"final_{step.rate}")
    return first, first if last is None else last


def rate_of(step: Step, settings: Any, taken: int) -> float:
    """Return the learning rate of a gradient step after so many environment steps."""
    return linear(*rates_of(step, settings), settings.total_steps, taken)


def exploration(settings: Any, step: int, episodes: int) -> float:
    """Return epsilon, the probability of a random action, at an environment step and after `episodes` episodes of this explorer."""
    start, end = settings.initial_epsilon, settings.final_epsilon
    if settings.epsilon_decay:
        return float(max(end, start * settings.epsilon_decay**episodes))
    return linear(start, end, settings.exploration_fraction * settings.total_steps, step)
