"""PyTorch. Lazy is torch.compile; native is DistributedDataParallel over Gloo or NCCL."""

from __future__ import annotations

from collections.abc import Mapping

TITLE = "PyTorch"
MODES = ("eager", "lazy")
ONE_PROCESS = ()
PARALLELISM = ("horovod", "native")
PACKAGES = ("torch",)
DEVICES = ("cpu", "cuda")
OBSERVATIONS = ("vector", "image")
STEPPING = ("sync", "processes", "pipes", "arrays", "compiled")
SOFTWARE = {"compiled": "torch-jax"}
THREADS = ("TORCHINDUCTOR_COMPILE_THREADS",)
OUT_OF_MEMORY = ("out of memory",)
# Shared, the first cell on a machine would compile for the others.
PRIVATE_DIRECTORIES = ("TORCHINDUCTOR_CACHE_DIR",)
HAS_PROFILER = True


def variables(cpus: int, given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to set before the import, when the environment is `given`."""
    return {}
