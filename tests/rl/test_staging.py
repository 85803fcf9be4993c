"""The arrays that take the inputs of programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hpcrl.rl.staging import Staging


def like(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    place = np.zeros_like(values)
    return place.view(), place


def test_the_next_inputs_of_these_kinds_are_in_the_same_arrays() -> None:
    staging = Staging(like)
    first = staging.put([np.ones((2, 3)), np.arange(4)])
    second = staging.put([np.full((2, 3), 5.0), np.arange(4, 8)])
    assert second is first
    assert [array.tolist() for array in second.arrays] == [[[5.0] * 3] * 2, [4, 5, 6, 7]]


@pytest.mark.parametrize("other", [np.ones((3, 2)), np.ones((2, 3), np.float32), np.ones((2, 3), np.int64)])
def test_another_shape_or_type_has_arrays_of_its_own(other: NDArray[Any]) -> None:
    staging = Staging(like)
    first = staging.put([np.full((2, 3), 0.5)])
    second = staging.put([other])
    assert second.kinds != first.kinds
    assert (first.arrays[0] == 0.5).all() and (second.arrays[0] == other).all()
    assert second.arrays[0].dtype == other.dtype


def test_one_input_at_a_time() -> None:
    staging = Staging(like)
    first = staging.one(np.array([1.0, 2.0]))
    assert staging.one(np.array([3.0, 4.0])) is first
    assert first.tolist() == [3.0, 4.0]
    others = [staging.one(np.zeros(3)), staging.one(np.array([5, 6])), staging.one(np.float32(7.0))]
    assert [array.tolist() for array in others] == [[0.0] * 3, [5, 6], 7.0]
    assert first.tolist() == [3.0, 4.0]
