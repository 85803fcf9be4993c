"""The framework's own profiler, for the first second of a training: its operators, and what the devices did meanwhile.

A second has enough updates to see one whole, and its trace still opens in a browser. The training then goes on without it.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from time import perf_counter
from typing import Any

from hpcrl.errors import UsageError
from hpcrl.formats.profiles import functions_of
from hpcrl.formats.traces import Thread, tree_of
from hpcrl.run.profilers.interface import Found

WINDOW_SECONDS = 1.0


class Tool:
    """Profiles with the profiler of a framework."""

    def __init__(self, framework: str | None) -> None:
        self._tracer: Any = importlib.import_module(f"hpcrl.run.profilers.tracers.{framework}")
        self._place = Path()
        self._since: float | None = None
        self._found: Any = None

    def start(self, scratch: Path) -> None:
        self._place = scratch
        self._tracer.start(scratch)
        self._since = perf_counter()

    def look(self) -> bool:
        if self._since is None or perf_counter() - self._since <= WINDOW_SECONDS:
            return False
        self.stop()
        return True

    def stop(self) -> None:
        if self._since is not None:
            self._since = None
            self._found = self._tracer.stop(self._place)

    def abandon(self) -> None:
        """Do nothing: to stop it may take long, and it ends with this process."""

    def write(self, scratch: Path) -> Found:
        file: Path
        threads: list[Thread]
        file, threads = self._tracer.written(self._found, scratch)
        tree = tree_of(threads)
        own = [function for thread in tree.callees.values() for function in functions_of(thread)]
        return Found(file, tree.value, own, tree)

    def wrapped(self, words: list[str], scratch: Path) -> list[str]:
        raise UsageError("framework is for built-in training")

    def read(self, scratch: Path) -> Found | None:
        return None
