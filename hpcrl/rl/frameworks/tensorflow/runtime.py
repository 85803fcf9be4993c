"""TensorFlow as a cell uses it: device, precision, compiler, synchronisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hpcrl.errors import UsageError


def configure() -> None:
    """Set full float32 precision and let GPU memory grow as needed (by default TensorFlow takes all of it).

    TensorFlow refuses the latter after its first computation.
    """
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    tf.config.experimental.enable_tensor_float_32_execution(False)


def check_device(device: str) -> None:
    """Make sure that there is a GPU for a cell that asks for one.

    Raises:
        UsageError: there is none.
    """
    if device == "cuda" and not tf.config.list_physical_devices("GPU"):
        raise UsageError(
            "tensorflow: this cell needs a GPU, but TensorFlow finds none here: it is not run on the CPU instead"
        )


def compiler(execution: str) -> Callable[[Callable[..., Any]], Any]:
    """Return the decorator that makes a function lazy (tf.function, or with XLA) or leaves it eager."""
    if execution == "eager":
        return lambda function: function
    return lambda function: tf.function(function, jit_compile=execution == "xla", autograph=False)


def compiled(execution: str, updates: list[Any], greedy: Any) -> str:
    """Say how often the functions were traced; the correct number is once per shape."""
    if execution == "eager":
        return "nothing: eager"
    how = "tf.function with XLA" if execution == "xla" else "tf.function"
    traces = sum(update.experimental_get_tracing_count() for update in updates)
    return f"{how}: {traces} update traces, {greedy.experimental_get_tracing_count()} acting traces"


def peak_memory() -> int | None:
    """Return the maximum bytes that the allocator held on the GPU."""
    if not tf.config.list_logical_devices("GPU"):
        return None
    return int(tf.config.experimental.get_memory_info("GPU:0")["peak"])


def wait(vector: Any) -> None:
    """Wait until a tensor has been computed; on the CPU it is, when Python gets it."""
    if tf.config.list_logical_devices("GPU"):
        tf.test.experimental.sync_devices()
