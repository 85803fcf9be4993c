"""jax.profiler: what Python, the runtime and the compiled programs did, as an XSpace, which XProf and TensorBoard open."""

from __future__ import annotations

from pathlib import Path

import jax

from hpcrl.formats.traces import Thread
from hpcrl.run.profilers.tracers.xspace import read_in


def start(directory: Path) -> None:
    options = jax.profiler.ProfileOptions()
    # Without each call of Python: in eager mode those are millions of events, and cProfile has them.
    options.python_tracer_level = 0
    jax.profiler.start_trace(str(directory), profiler_options=options)


def stop(directory: Path) -> None:
    jax.profiler.stop_trace()


def written(found: None, directory: Path) -> tuple[Path, list[Thread]]:
    """Return the file of the trace and its threads."""
    return read_in(directory)
