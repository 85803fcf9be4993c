"""NumPy as a cell uses it."""

from __future__ import annotations


def configure() -> None:
    """Do nothing: NumPy has no settings."""
