"""TensorFlow's profiler: operators and the runtime, as an XSpace, which XProf and TensorBoard open."""

from __future__ import annotations

from pathlib import Path

import tensorflow

from hpcrl.formats.traces import Thread
from hpcrl.run.profilers.tracers.xspace import read_in


def start(directory: Path) -> None:
    tensorflow.profiler.experimental.start(str(directory))


def stop(directory: Path) -> None:
    tensorflow.profiler.experimental.stop()


def written(found: None, directory: Path) -> tuple[Path, list[Thread]]:
    """Return the file of the trace and its threads."""
    return read_in(directory)
