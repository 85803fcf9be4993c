"""MXNet as a cell uses it: device, Gluon's hybridization."""

from __future__ import annotations

from typing import Any

import mxnet as mx

from hpcrl.errors import UsageError


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


def compiled(lazy: bool, blocks: dict[str, Any]) -> str:
    """Name the blocks that run as a cached graph; Gluon makes the graph at a hybridized block's first call."""
    if not lazy:
        return "nothing: imperative"
    made = [name for name, block in blocks.items() if block._cached_op is not None]
    return f"Gluon hybridize: {len(made)} cached graphs ({', '.join(made)})"


def wait(vector: Any) -> None:
    """Wait until an array has been computed; MXNet's engine is asynchronous, also on the CPU."""
    vector.wait_to_read()
