"""PyTorch as a cell uses it: device, precision, compiler, synchronisation."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from warnings import filterwarnings

import torch

from hpcrl.errors import UsageError


def configure() -> None:
    """Set full float32 precision. Batches may be views of arrays that only JAX may write: nothing here writes into a batch."""
    filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def check_device(device: str, lazy: bool) -> torch.device:
    """Return the device.

    Raises:
        UsageError: no GPU for a cell that asks for one, or no compiler for lazy mode.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("torch: this cell needs a GPU, but torch finds none here: it is not run on the CPU instead")
    if lazy:
        # For the CPU torch.compile makes C++; for GPUs Triton makes a small launcher in C.
        _check_compiler(os.environ.get("CXX", "g++") if device == "cpu" else os.environ.get("CC", "gcc"))
    return torch.device(device)


def _check_compiler(compiler: str) -> None:
    header = Path(sysconfig.get_path("include")) / "Python.h"
    missing = [
        what for what, there in ((compiler, shutil.which(compiler)), (str(header), header.exists())) if not there
    ]
    if missing:
        raise UsageError(
            f"torch: lazy mode needs a compiler, and there is no {' and no '.join(missing)} here: load a compiler "
            "module, or install g++ and python3-dev"
        )


def compiler(lazy: bool) -> Callable[[Callable[..., Any]], Any]:
    """Return the decorator that makes a function lazy or leaves it eager. One shape gives one graph: a graph break is an error."""
    if not lazy:
        return lambda function: function
    return lambda function: torch.compile(function, fullgraph=True, dynamic=False)


def compiled(lazy: bool) -> str:
    """Say what the compiler really did in this process."""
    if not lazy:
        return "nothing: eager"
    from torch._dynamo.utils import counters

    graphs, breaks = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
    return f"torch.compile: {graphs} graphs, {breaks} graph breaks"


def finish() -> None:
    """End the processes that compile. PyTorch itself ends them at the exit of this process, too late for the usage of a cell."""
    module = sys.modules.get("torch._inductor.async_compile")
    with suppress(Exception):  # PyTorch does not document it
        getattr(module, "shutdown_compile_workers", lambda: None)()


def synchronize(device: torch.device) -> None:
    """Wait for the device, if it is a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory(device: torch.device) -> int | None:
    """Return the maximum bytes that the allocator held on the GPU."""
    return int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else None


def wait(vector: torch.Tensor) -> None:
    """Wait until a tensor has been computed."""
    synchronize(vector.device)
