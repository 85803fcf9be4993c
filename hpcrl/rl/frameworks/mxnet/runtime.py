"""MXNet as a cell uses it: device, inputs, bound symbols, synchronisation."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
from numpy.typing import NDArray

from hpcrl.errors import UsageError
from hpcrl.rl.frameworks.mxnet.programs import Program


def configure() -> None:
    """Do nothing: MXNet has no setting that a later one could miss."""


def check_device(device: str) -> Any:
    """Return the context of the device.

    Raises:
        UsageError: no GPU for a cell that asks for one.
    """
    if device != "cuda":
        return mx.cpu()
    if not mx.context.num_gpus():
        raise UsageError("mxnet: this cell needs a GPU, but MXNet finds none here: it is not run on the CPU instead")
    return mx.gpu(0)


def input_like(values: NDArray[Any], context: Any) -> tuple[Any, Any]:
    """Return a float32 array of the context, and what to write its values to: on the CPU an array of NumPy with the same memory."""
    if context != mx.cpu():
        array = mx.nd.zeros(values.shape, ctx=context)
        return array, array
    place = np.zeros(values.shape, np.float32)
    # MXNet forbids NumPy to write to the view that it is given.
    return mx.nd.from_numpy(place.view(), zero_copy=True), place


def compiled(lazy: bool, updates: list[Program], acting: list[Program]) -> str:
    """Say how many symbols were bound; the correct number is one per shape."""
    if not lazy:
        return "nothing: imperative"
    counts = [sum(program.compiled() for program in programs) for programs in (updates, acting)]
    return f"bound symbols: {counts[0]} of updates, {counts[1]} of acting"


def wait(vector: Any) -> None:
    """Wait until an array has been computed; MXNet's engine is asynchronous, also on the CPU."""
    vector.wait_to_read()
