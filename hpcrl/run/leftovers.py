"""Adopt the processes of a cell that outlive its workload, wait for them, and end them."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Collection
from contextlib import suppress

import psutil

from hpcrl.errors import count
from hpcrl.telemetry.processes import children, descendants

GRACE_SECONDS = 5.0
_POLL_SECONDS = 0.02
# After a training: for processes that are already ending, and for the daemonic ones of multiprocessing.
_PATIENCE_SECONDS = 0.5
_FORKSERVER = "from multiprocessing.forkserver import"
# What Python and frameworks start for themselves, by a part of the command line: it is ended without a note.
_HELPERS = (
    "from multiprocessing.resource_tracker import",
    _FORKSERVER,
    "loky.backend.resource_tracker import",
    "/_inductor/compile_worker/",
)
# A process that uses MPI without mpirun is their parent. MPI_Finalize, at its exit, needs them.
_MPI = frozenset({"orted", "prted", "prte", "hydra_pmi_proxy"})


def reap(keep: Collection[int]) -> None:
    """Wait for every child that has ended, except `keep`, so that the kernel counts its usage."""
    for pid in children(os.getpid()):
        if pid not in keep:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def end_leftovers(keep: Collection[int], grace: float = GRACE_SECONDS) -> str | None:
    """End all descendants of this process, except `keep` and their descendants, and wait for them.

    Args:
        grace: seconds between TERM and KILL.

    Returns:
        a sentence about the ended processes; None if there were none.
    """
    reap(keep)
    names: Counter[str] = Counter()
    known: set[int] = set()
    own = _command_line(os.getpid())
    deadline = time.monotonic() + grace
    while left := _below(keep):
        for process in left:
            with suppress(psutil.Error):
                line = _command_line(process.pid)
                if process.pid not in known and not any(helper in line for helper in _HELPERS):
                    names[process.name()] += 1
                # A fork of this process has its handlers, which survive TERM, and shares the pipe that tells a rank of it. The server
                # of processes of environments holds TERM back.
                if line == own or _FORKSERVER in line or (process.pid in known and time.monotonic() > deadline):
                    process.kill()
                elif process.pid not in known:
                    process.terminate()
            known.add(process.pid)
        time.sleep(_POLL_SECONDS)
        reap(keep)
        if time.monotonic() > deadline + GRACE_SECONDS:  # KILL does not end a process that waits for a dead disk
            break
    if not names:
        return None
    told = ", ".join(name if number == 1 else f"{number} x {name}" for name, number in names.most_common(5))
    return f"{count(names.total(), 'process', 'processes')} outlived the workload and had to be ended ({told})"


def end_after_training(keep: Collection[int], grace: float = GRACE_SECONDS) -> str | None:
    """Do the same after a training in this process. The processes of its libraries are not reported.

    Daemonic processes of multiprocessing are ended first: Python would end them at the exit of this process. The resource
    trackers and MPI's daemons stay, because they are needed until then, and end with this process.
    """
    own = [child for child in multiprocessing.active_children() if child.daemon]
    for child in own:
        child.kill()
    for child in own:
        child.join(_PATIENCE_SECONDS)
    kept = {*keep, *_needed_until_exit()}
    deadline = time.monotonic() + _PATIENCE_SECONDS
    reap(kept)
    while _below(kept) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        reap(kept)
    return end_leftovers(kept, grace)


def _needed_until_exit() -> set[int]:
    """Return the processes that libraries of this process started and still need."""
    # multiprocessing's tracker and those of packages like it. They ignore TERM, and end when this process does.
    modules = [module for name, module in list(sys.modules.items()) if name.endswith(".resource_tracker")]
    trackers = {getattr(getattr(module, "_resource_tracker", None), "_pid", None) for module in modules}
    needed = {pid for pid in trackers if isinstance(pid, int)}
    for pid in children(os.getpid()):
        with suppress(psutil.Error):
            if psutil.Process(pid).name() in _MPI:
                needed.add(pid)
    return needed


def _command_line(pid: int) -> str:
    with suppress(psutil.Error):
        return " ".join(psutil.Process(pid).cmdline())
    return ""


def _below(keep: Collection[int]) -> list[psutil.Process]:
    kept = set(keep).union(*(descendants(pid) for pid in keep))
    processes = []
    for pid in descendants(os.getpid()):
        with suppress(psutil.Error):
            if pid not in kept and (process := psutil.Process(pid)).status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return processes
