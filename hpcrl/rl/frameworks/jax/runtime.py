"""JAX as a cell uses it: device, precision, compiler."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from hpcrl.errors import UsageError
from hpcrl.rl.staging import Staging

_dispatches_asynchronously = False  # on the CPU
_ALIGNED = 64  # bytes to a multiple of which memory is aligned that JAX does not copy


def configure() -> None:
    """Set full float32 precision and synchronous dispatch on the CPU: a hand-over to a thread costs more than it saves.

    JAX reads the latter when it creates its CPU client, at the first computation or the first query of its devices.
    """
    jax.config.update("jax_default_matmul_precision", "highest")
    jax.config.update("jax_cpu_enable_async_dispatch", _dispatches_asynchronously)


def dispatch_asynchronously() -> None:
    """Leave the CPU's dispatch as JAX has it by default; before the first computation."""
    global _dispatches_asynchronously
    _dispatches_asynchronously = True
    configure()


def check_device(device: str) -> None:
    """Make sure that there is a GPU for a cell that asks for one.

    Raises:
        UsageError: there is none.
    """
    if device == "cuda" and jax.default_backend() != "gpu":
        raise UsageError("jax: this cell needs a GPU, but JAX finds none here: it is not run on the CPU instead")


def shares_memory(device: jax.Device) -> bool:
    """Tell whether programs on a device may read their inputs from NumPy's memory: it is the one that JAX has this memory on, and they end before they return."""
    if device.platform != "cpu" or _dispatches_asynchronously:
        return False
    return device in input_like(np.zeros(1, np.float32))[0].devices()


def staging(device: jax.Device) -> Staging | None:
    """Return what keeps the inputs of programs on a device in NumPy's memory, if they may read them from there."""
    return Staging(input_like) if shares_memory(device) else None


def input_like(array: NDArray[Any]) -> tuple[jax.Array, NDArray[Any]]:
    """Return an array on the CPU like one of NumPy, in JAX's type for it, and the memory that both of these share."""
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    size = array.size * dtype.itemsize
    memory = np.zeros(size + _ALIGNED, np.uint8)
    start = -memory.ctypes.data % _ALIGNED
    place = memory[start : start + size].view(dtype).reshape(array.shape)
    made: jax.Array = jax.numpy.from_dlpack(place)
    assert not place.size or made.unsafe_buffer_pointer() == place.ctypes.data, "JAX copied memory that it should share"
    return made, place


def peak_memory() -> int | None:
    """Return the maximum bytes that the allocator held on the GPU; JAX does not count on the CPU."""
    if jax.default_backend() != "gpu":
        return None
    return int((jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)) or None


def wait(vector: jax.Array | NDArray[np.float32]) -> None:
    """Wait until an array has been computed."""
    jax.block_until_ready(vector)
