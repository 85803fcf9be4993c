"""NumPy: the executable specification, which every other framework is held to."""

from __future__ import annotations

from collections.abc import Mapping

TITLE = "NumPy"
MODES = ("eager",)
ONE_PROCESS = ()
PARALLELISM = ()
PACKAGES = ("numpy",)
DEVICES = ("cpu",)
THREADS = ()
OUT_OF_MEMORY = ()


def variables(cpus: int, given: Mapping[str, str]) -> dict[str, str]:
    """Return what must stand in the environment before the import, where `given` stands now."""
    return {}
