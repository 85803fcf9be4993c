"""PyTorch. Lazy is torch.compile; native is DistributedDataParallel over Gloo or NCCL."""

from __future__ import annotations

from collections.abc import Mapping

TITLE = "PyTorch"
MODES = ("eager", "lazy")
ONE_PROCESS = ()
PARALLELISM = ("horovod", "native")
PACKAGES = ("torch",)
DEVICES = ("cpu", "cuda")
THREADS = ("TORCHINDUCTOR_COMPILE_THREADS",)
OUT_OF_MEMORY = ("out of memory",)


def variables(cpus: int, given: Mapping[str, str]) -> dict[str, str]:
    """Return what must stand in the environment before the import, where `given` stands now."""
    return {}
