"""Which actions an environment takes."""

from __future__ import annotations

from typing import Any


def kind_of_actions(space: Any) -> str:
    """Return ``discrete`` (one whole number), ``continuous`` (a vector of real numbers), or ``other``."""
    shape = getattr(space, "shape", None) or ()
    if getattr(space, "n", None) is not None and shape == ():
        return "discrete"
    return "continuous" if len(shape) == 1 and str(getattr(space, "dtype", "")).startswith("float") else "other"
