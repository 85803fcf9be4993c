"""What a profiler does for one rank: around its training, in this process, or around its command.

A profiler writes into a private directory, `scratch`. :mod:`hpcrl.run.profiling` makes it, copies the profile into the plan, and removes it. Every
method may raise any exception: the cell goes on without a profile, and its row says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from hpcrl.formats.profiles import Frame, Function


@dataclass(frozen=True)
class Found:
    """What a profiler wrote: its file, what it counted in all, its functions and its call tree (None: it has none)."""

    file: Path
    total: float
    functions: list[Function]
    tree: Frame | None = None


class Tool(Protocol):
    """One profiler of one rank. It is made with the name of the framework of built-in training, or None."""

    def start(self, scratch: Path) -> None:
        """Begin, in the thread that trains. What is written meanwhile goes below `scratch`."""

    def look(self) -> bool:
        """Take note of some progress of the training. Tell whether the profiler stopped here, because it has a limit."""

    def stop(self) -> None:
        """End it, in the same thread."""

    def abandon(self) -> None:
        """Give up at once, without a profile: the cell got a signal, and has only seconds. Nothing is called afterwards."""

    def write(self, scratch: Path) -> Found:
        """Write what was measured since :meth:`start` below `scratch`, the same directory."""

    def wrapped(self, words: list[str], scratch: Path) -> list[str]:
        """Return the command line that runs a command under this profiler, which writes below `scratch`."""

    def read(self, scratch: Path) -> Found | None:
        """Return what a command's profiler wrote; None if it wrote nothing."""


@runtime_checkable
class Attached(Protocol):
    """A profiler that is a process of its own and looks at a command from outside."""

    def attach(self, pid: int, environment: Mapping[str, str]) -> None:
        """Begin to look at a process; `environment` has the command's variables."""

    def stop(self) -> None:
        """End it; the command has ended."""

    def abandon(self) -> None:
        """End it at once, without a profile."""

    def processes(self) -> list[int]:
        """Return its own processes, which are not left over by the command."""
