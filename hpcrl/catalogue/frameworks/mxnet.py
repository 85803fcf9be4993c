"""Apache MXNet (retired). Lazy is Gluon's hybridize."""

from __future__ import annotations

from collections.abc import Mapping

TITLE = "MXNet"
MODES = ("eager", "lazy")
ONE_PROCESS = ()
PARALLELISM = ("horovod",)
PACKAGES = ("mxnet", "mxnet-cu117")
DEVICES = ("cpu", "cuda")
THREADS = ()
OUT_OF_MEMORY = ("out of memory",)


def variables(cpus: int, given: Mapping[str, str]) -> dict[str, str]:
    """Return what must stand in the environment before the import, where `given` stands now."""
    return {}
