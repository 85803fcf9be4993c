"""A framework's arrays that take the inputs of its programs, one batch after the other: making new ones costs more than a small network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# The shape of each array, and the number that NumPy gives its type.
Kinds = tuple[tuple[tuple[int, ...], int], ...]


class Inputs(NamedTuple):
    """A framework's arrays, and the kinds of the arrays that were given. The next inputs of these kinds are in the same arrays."""

    kinds: Kinds
    arrays: list[Any]


def kinds_of(values: Sequence[NDArray[Any]]) -> Kinds:
    """Return the kinds of arrays."""
    return tuple([(array.shape, array.dtype.num) for array in values])


class Staging:
    """A set of arrays for the inputs of each combination of kinds. `make` returns an array of the framework like one of NumPy, and what to write its values to."""

    def __init__(self, make: Callable[[NDArray[Any]], tuple[Any, Any]]) -> None:
        self._make = make
        self._sets: dict[Kinds, tuple[Inputs, list[Any]]] = {}
        self._ones: dict[tuple[tuple[int, ...], int], tuple[Any, Any]] = {}

    def put(self, values: Sequence[NDArray[Any]]) -> Inputs:
        """Return the inputs with these values. Nothing may still read those of the last call with these kinds."""
        kinds = kinds_of(values)
        if kinds not in self._sets:
            pairs = [self._make(array) for array in values]
            self._sets[kinds] = Inputs(kinds, [made for made, _ in pairs]), [place for _, place in pairs]
        inputs, places = self._sets[kinds]
        for place, array in zip(places, values, strict=True):
            place[...] = array
        return inputs

    def one(self, value: NDArray[Any] | np.generic) -> Any:
        """Return an array with this value, faster than :meth:`put`. Nothing may still read that of the last call with this kind."""
        kind = value.shape, value.dtype.num
        if kind not in self._ones:
            self._ones[kind] = self._make(np.asarray(value))
        made, place = self._ones[kind]
        place[...] = value
        return made
