"""NumPy: the executable specification, with which every other framework is compared."""

from __future__ import annotations

from collections.abc import Mapping

TITLE = "NumPy"
MODES = ("eager",)
ONE_PROCESS = ()
PARALLELISM = ()
PACKAGES = ("numpy",)
DEVICES = ("cpu",)
OBSERVATIONS = ("vector", "image")
STEPPING = ("sync", "processes", "pipes", "arrays", "compiled")
SOFTWARE = {"compiled": "jax"}
THREADS = ()
OUT_OF_MEMORY = ()
PRIVATE_DIRECTORIES = ()


def variables(cpus: int, given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to set before the import, when the environment is `given`."""
    return {}
