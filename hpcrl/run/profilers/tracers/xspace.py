"""The file that JAX and TensorFlow write."""

from __future__ import annotations

from pathlib import Path

from hpcrl.formats.traces import XSPACE, Thread, read_xspace


def read_in(directory: Path) -> tuple[Path, list[Thread]]:
    """Return the trace below a directory and its threads.

    Raises:
        FileNotFoundError: there is none.
        TraceError: it cannot be read.
    """
    files = sorted(directory.rglob(f"*{XSPACE}"))
    if not files:
        raise FileNotFoundError("the framework's profiler wrote no trace")
    file = files[0].rename(directory / f"profile{XSPACE}")
    return file, read_xspace(file.read_bytes())
