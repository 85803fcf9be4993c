"""Adopt the processes of a cell that outlive its workload, wait for them, and end them."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Collection
from contextlib import suppress

import psutil

from hpcrl.errors import count
from hpcrl.telemetry.processes import children, descendants

_GRACE_SECONDS = 5.0


def reap(keep: Collection[int]) -> None:
    """Wait for every child that has ended, except `keep`, so that the kernel counts its usage."""
    for pid in children(os.getpid()):
        if pid not in keep:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def end_leftovers(keep: Collection[int]) -> str | None:
    """End all descendants of this process, except `keep` and their descendants, and wait for them.

    Returns:
        a sentence about the ended processes; None if there were none.
    """
    reap(keep)
    names: Counter[str] = Counter()
    known: set[int] = set()
    deadline = time.monotonic() + _GRACE_SECONDS
    while left := _below(keep):
        for process in left:
            with suppress(psutil.NoSuchProcess):
                if process.pid not in known:
                    names[process.name()] += 1
                    known.add(process.pid)
                    process.terminate()
                elif time.monotonic() > deadline:
                    process.kill()
        time.sleep(0.02)
        reap(keep)
        if time.monotonic() > deadline + _GRACE_SECONDS:  # KILL does not end a process that waits for a dead disk
            break
    if not names:
        return None
    told = ", ".join(name if number == 1 else f"{number} x {name}" for name, number in names.most_common(5))
    return f"{count(names.total(), 'process', 'processes')} outlived the workload and had to be ended ({told})"


def _below(keep: Collection[int]) -> list[psutil.Process]:
    kept = set(keep).union(*(descendants(pid) for pid in keep))
    processes = []
    for pid in descendants(os.getpid()):
        with suppress(psutil.NoSuchProcess):
            if pid not in kept and (process := psutil.Process(pid)).status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return processes
