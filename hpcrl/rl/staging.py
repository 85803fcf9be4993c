"""A framework's arrays that take the inputs of its programs, one batch after the other: making new ones costs more than a small network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

Shapes = tuple[tuple[int, ...], ...]


class Inputs(NamedTuple):
    """A framework's arrays, and their shapes. The next inputs of these shapes have the same arrays."""

    shapes: Shapes
    arrays: list[Any]


class Staging:
    """One set of arrays for each shapes. `make` returns an array of the framework like one of NumPy, and what to write its values to."""

    def __init__(self, make: Callable[[NDArray[Any]], tuple[Any, Any]]) -> None:
        self._make = make
        self._sets: dict[Shapes, tuple[Inputs, list[Any]]] = {}

    def put(self, values: Sequence[NDArray[Any]]) -> Inputs:
        """Return the inputs with these values. Nothing may still read those of the last call. Arrays of one shape always have the same type."""
        shapes = tuple([array.shape for array in values])
        if shapes not in self._sets:
            pairs = [self._make(array) for array in values]
            self._sets[shapes] = Inputs(shapes, [made for made, _ in pairs]), [place for _, place in pairs]
        inputs, places = self._sets[shapes]
        for place, array in zip(places, values, strict=True):
            place[...] = array
        return inputs
