"""TensorFlow. Lazy is tf.function, and xla is tf.function compiled with XLA."""

from __future__ import annotations

from collections.abc import Mapping

TITLE = "TensorFlow"
MODES = ("eager", "lazy", "xla")
ONE_PROCESS = ()
PARALLELISM = ("horovod",)
PACKAGES = ("tensorflow", "tensorflow-cpu", "keras")
DEVICES = ("cpu", "cuda")
OBSERVATIONS = ("vector", "image")
STEPPING = ("sync", "processes", "pipes", "arrays")
THREADS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
OUT_OF_MEMORY = ("oom when allocating", "resource_exhausted")
PRIVATE_DIRECTORIES = ()
HAS_PROFILER = True


def variables(cpus: int, given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to set before the import, when the environment is `given`."""
    return {"TF_CPP_MIN_LOG_LEVEL": given.get("TF_CPP_MIN_LOG_LEVEL", "1")}
