"""Images as observations: which spaces show them, and the convolutions that networks have for them."""

from __future__ import annotations

from math import isqrt
from typing import Any

# Kernels of the first, second and third convolution, and the stride of each kernel (Mnih et al. 2015, doi 10.1038/nature14236).
KERNELS = (8, 4, 3)
STRIDES = {8: 4, 4: 2, 3: 1}
_KINDS = {"vector": "a vector", "image": "a square image (height, width, channels) of uint8"}


def kind_of(space: Any) -> str | None:
    """Return what a space of observations shows, ``vector`` or ``image``; None if it is neither."""
    shape: tuple[int, ...] = getattr(space, "shape", None) or ()
    if len(shape) == 1:
        return "vector"
    return "image" if len(shape) == 3 and shape[0] == shape[1] and str(space.dtype) == "uint8" else None


def observation_fault(space: Any, kinds: tuple[str, ...]) -> str | None:
    """Say that observations are none of the `kinds` that an algorithm can learn from; None if they are."""
    if kind_of(space) in kinds:
        return None
    wanted = " or ".join(_KINDS[kind] for kind in kinds)
    return f"expected observations that are {wanted}, got {getattr(space, 'described', None) or described(space)}"


def described(space: Any) -> str:
    """Describe a space in words: a `Box` by type and shape, any other one by its class."""
    shape = getattr(space, "shape", None)
    return f"{space.dtype} of shape {shape}" if shape else type(space).__name__


def side_of(inputs: int, channels: int) -> int:
    """Return the side of a flat square image."""
    return isqrt(inputs // channels)


def convolved(side: int, kernel: int) -> int:
    """Return the side of what a convolution without padding makes of a square of this side."""
    return (side - kernel) // STRIDES[kernel] + 1


def filters_fault(filters: tuple[int, ...], side: int | None = None) -> str | None:
    """Say why there cannot be these convolutions, or not for images of this side; None if there can."""
    if len(filters) > len(KERNELS):
        return f"expected one to three convolutions, got {len(filters)}"
    smallest = 1
    for kernel in reversed(KERNELS[: len(filters)]):
        smallest = (smallest - 1) * STRIDES[kernel] + kernel
    if side is None or side >= smallest:
        return None
    kernels = ", ".join(str(kernel) for kernel in KERNELS[: len(filters)])
    return f"kernels of {kernels} need images of at least {smallest} x {smallest}, got {side} x {side}"
