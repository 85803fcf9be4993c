"""Columns of numbers, truth values and text as Arrow arrays, made of their buffers.

pyarrow.array makes the same arrays, but its first call imports pandas, which takes longer than a whole small collect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Array = NDArray[Any]


def column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Make a column of numbers, truth values, text or dictionary-encoded text; None is missing.

    Raises:
        OverflowError: a number is too large for the type.
        ValueError: text is not Unicode, or another value has the wrong type.
        TypeError: a value has the wrong type.
        pa.ArrowCapacityError: there is too much text.
    """
    unknown = values.count(None)
    if unknown == len(values):
        return pa.nulls(len(values), kind)
    if pa.types.is_dictionary(kind):
        places: dict[str, int] = {}
        indices = [None if value is None else places.setdefault(value, len(places)) for value in values]
        return pa.DictionaryArray.from_arrays(column(indices, kind.index_type), column(list(places), kind.value_type))
    missing = np.array([value is None for value in values], bool) if unknown else None
    if pa.types.is_string(kind):
        encoded = [(value or "").encode() for value in values]
        offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        if offsets[-1] >= 2**31:
            raise pa.ArrowCapacityError("2 GiB of text or more in one column")
        buffers = [pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(b"".join(encoded))]
        return pa.Array.from_buffers(kind, len(values), [_validity(missing), *buffers])
    known = [0 if value is None else value for value in values] if unknown else values
    return numbers(np.array(known, bool if pa.types.is_boolean(kind) else kind.to_pandas_dtype()), missing)


def numbers(values: Array, missing: Array | None = None) -> pa.Array:
    """Make a column of (rows,) numbers or truth values of the same type; `missing` (rows,) says which are unknown."""
    kind = pa.from_numpy_dtype(values.dtype)
    data = np.packbits(values, bitorder="little") if pa.types.is_boolean(kind) else np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, len(values), [_validity(missing), pa.py_buffer(data)])


def words(places: Array, texts: Sequence[str]) -> pa.Array:
    """Make a column of dictionary-encoded text: `places` (rows,) among the texts."""
    return pa.DictionaryArray.from_arrays(numbers(places.astype(np.int32)), column(texts, pa.string()))


def _validity(missing: Array | None) -> pa.Buffer | None:
    return None if missing is None or not missing.any() else pa.py_buffer(np.packbits(~missing, bitorder="little"))
