"""Which actions an environment takes."""

from __future__ import annotations

from typing import Any

from hpcrl.catalogue.images import described

# Where a float32 says that there is no bound; some environments give the largest number instead of infinity.
_UNBOUNDED = 1e18


FAULT = "hpcrl: fault "  # begins the line in which such a process tells what is wrong with the environment
SPACES = "hpcrl: spaces "  # begins the line in which a process of its own tells the spaces of an environment, as JSON


def spaces_of(environment: Any) -> tuple[str, tuple[int, ...], str, str, str | None]:
    """Return kind of actions, shape and type of observations, these in words, and whether continuous actions have no bounds, as a sentence."""
    taken, seen = environment.action_space, environment.observation_space
    kind = kind_of_actions(taken)
    shape = tuple(int(length) for length in getattr(seen, "shape", None) or ())
    unbounded = bounds_fault(taken) if kind == "continuous" else None
    return kind, shape, str(getattr(seen, "dtype", None)), described(seen), unbounded


def kind_of_actions(space: Any) -> str:
    """Return ``discrete`` (one whole number), ``continuous`` (a vector of real numbers), or the class of any other space, of a box with shape and dtype."""
    shape, name = getattr(space, "shape", None) or (), type(space).__name__
    if getattr(space, "n", None) is not None and shape == ():
        return "discrete"
    if len(shape) == 1 and str(getattr(space, "dtype", "")).startswith("float"):
        return "continuous"
    return f"Box {list(shape)} {space.dtype}" if name == "Box" else name


def bounds_fault(space: Any) -> str | None:
    """Say that continuous actions have no bounds; None if each of their numbers has a lowest and a highest value."""
    for low, high in zip(space.low, space.high, strict=True):
        if not low < high:
            return f"expected actions whose lowest value is below their highest, got a number from {float(low):g} to {float(high):g}"
        if not (-_UNBOUNDED < low < high < _UNBOUNDED):
            return f"expected actions between finite bounds, got a number from {float(low):g} to {float(high):g}"
    return None
