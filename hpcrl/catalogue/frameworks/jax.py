"""JAX with Flax. Lazy is jax.jit; in fused mode the environment is compiled too, and training is one scan."""

from __future__ import annotations

from collections.abc import Mapping

TITLE = "JAX"
MODES = ("eager", "lazy", "fused")
ONE_PROCESS = ("fused",)
PARALLELISM = ("horovod", "native")
NEEDS_MPI = ("horovod",)  # Horovod has no binding of JAX: gradients are averaged over MPI
PACKAGES = ("jax", "jaxlib", "flax", "optax")
DEVICES = ("cpu", "cuda")
OBSERVATIONS = ("vector", "image")
STEPPING = ("sync", "processes", "pipes", "arrays", "compiled")
ENVIRONMENTS = ("CartPole-v0", "CartPole-v1", "Doors-v0", "MountainCar-v0")
THREADS = ()
OUT_OF_MEMORY = ("resource_exhausted",)
PRIVATE_DIRECTORIES = ()
HAS_PROFILER = True


def variables(cpus: int, given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to set before the import, when the environment is `given`."""
    values = {"XLA_PYTHON_CLIENT_PREALLOCATE": given.get("XLA_PYTHON_CLIENT_PREALLOCATE", "false")}
    if cpus == 1:
        values["XLA_FLAGS"] = f"{given.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    return values
