"""Apache MXNet (retired). Lazy is a symbol bound to its arrays."""

from __future__ import annotations

from collections.abc import Mapping

TITLE = "MXNet"
MODES = ("eager", "lazy")
ONE_PROCESS = ()
PARALLELISM = ("horovod",)
PACKAGES = ("mxnet", "mxnet-cu117")
DEVICES = ("cpu", "cuda")
OBSERVATIONS = ("vector",)
STEPPING = ("sync", "processes", "pipes", "arrays")
THREADS = ()
OUT_OF_MEMORY = ("out of memory",)
PRIVATE_DIRECTORIES = ()


def variables(cpus: int, given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to set before the import, when the environment is `given`."""
    # Else MXNet prints a line for each symbol that it binds.
    return {"MXNET_SUBGRAPH_VERBOSE": given.get("MXNET_SUBGRAPH_VERBOSE", "0")}
