"""Schedules: values that change with the environment step."""

from __future__ import annotations


def linear(start: float, end: float, steps: float, step: int) -> float:
    """Go from `start` to `end` over `steps` steps, then stay."""
    if steps <= 0 or step >= steps:
        return end
    return start + (end - start) * step / steps
