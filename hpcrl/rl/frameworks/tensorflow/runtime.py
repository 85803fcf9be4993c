"""TensorFlow as a cell uses it: device, precision, compiler, synchronisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.python.eager import context, execute

from hpcrl.errors import UsageError
from hpcrl.rl.staging import Inputs, Kinds, Staging, kinds_of

# Bytes: where TensorFlow's own memory begins.
_ALIGNMENT = 64


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


def input_like(values: NDArray[Any]) -> tuple[Any, NDArray[Any]]:
    """Return a tensor on the CPU, and the array of NumPy with the same memory: TensorFlow shares memory that begins where it allocates."""
    raw = np.zeros(values.nbytes + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    place = raw[start : start + values.nbytes].view(values.dtype.newbyteorder("=")).reshape(values.shape)
    tensor = tf.experimental.dlpack.from_dlpack(place.__dlpack__())
    assert not place.size or np.shares_memory(np.asarray(memoryview(tensor)), place)
    return tensor, place


class Transfer:
    """Gives the inputs of programs from arrays: on a GPU new tensors each time."""

    def __init__(self) -> None:
        self._staging = None if tf.config.list_logical_devices("GPU") else Staging(input_like)

    def __call__(self, values: Sequence[NDArray[Any]]) -> Inputs:
        """Return the inputs with these values. On the CPU, those of the last call with these kinds change."""
        if self._staging is not None:
            return self._staging.put(values)
        return Inputs(kinds_of(values), [tf.convert_to_tensor(array) for array in values])


class Program:
    """A function of tensors that gives a list of tensors, as a cell of this mode runs it.

    Eager functions are called as they are. The concrete functions of a tf.function are called by their names: a call of
    a tf.function first matches its arguments with a signature and collects its variables, in Python, which for a
    small network takes several times as long as computing. Here both are done once for inputs of the same kinds.
    """

    def __init__(self, execution: str, function: Callable[..., Any]) -> None:
        self._eager = execution == "eager"
        self.function = compiler(execution)(function)
        self._entries: dict[Kinds, tuple[bytes, int, list[Any]]] = {}

    def __call__(self, inputs: Inputs, *others: Any) -> list[Any]:
        """Return the outputs of inputs and other tensors, whose shapes are always the same."""
        kinds, tensors = inputs
        if self._eager:
            return list(self.function(*tensors, *others))
        if kinds not in self._entries:
            concrete = self.function.get_concrete_function(*tensors, *others)
            name = concrete.name if isinstance(concrete.name, bytes) else concrete.name.encode()
            self._entries[kinds] = name, len(concrete.outputs), list(concrete.captured_inputs)
        name, outputs, captured = self._entries[kinds]
        results: list[Any] = execute.execute(name, outputs, [*tensors, *others, *captured], (), context.context())
        return results


def compiled(execution: str, updates: list[Any], acting: list[Any]) -> str:
    """Say how often functions were traced; the correct number is once per shape."""
    if execution == "eager":
        return "nothing: eager"
    how = "tf.function with XLA" if execution == "xla" else "tf.function"
    counts = [
        sum(function.experimental_get_tracing_count() for function in functions) for functions in (updates, acting)
    ]
    return f"{how}: {counts[0]} update traces, {counts[1]} acting traces"


def peak_memory() -> int | None:
    """Return the maximum bytes that the allocator held on the GPU."""
    if not tf.config.list_logical_devices("GPU"):
        return None
    return int(tf.config.experimental.get_memory_info("GPU:0")["peak"])


def wait(vector: Any = None) -> None:
    """Wait until a tensor and all else has been computed; on the CPU it is, when Python gets it."""
    if tf.config.list_logical_devices("GPU"):
        tf.test.experimental.sync_devices()
