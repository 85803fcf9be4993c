"""The job's own processes, read from /proc.

Only the job's own processes are read: the kernel lists the children of each thread, so a reading costs the same on a
node with thousands of other processes. If a kernel has no such list, psutil walks all processes.
"""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress

import psutil

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SIGCHLD = 1 << 16  # in the mask of ignored signals
_SET_PDEATHSIG, _SET_NAME, _SET_CHILD_SUBREAPER = 1, 15, 36  # prctl(2)
# The name of hpcrl's own process when it only starts and watches the workload; at most 15 characters.
RUNNER = b"hpcrl-run"
_NOT_THE_WORKLOAD = (RUNNER.decode(), "slurmstepd")


def name_runner() -> None:
    """Give this process the name by which the sampler knows that it is not part of the workload."""
    ctypes.CDLL(None).prctl(_SET_NAME, RUNNER, 0, 0, 0)


def adopt_orphans() -> None:
    """Make this process adopt all descendants whose parents end: they stay in its tree, and it waits for them."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has died already
        os._exit(1)


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and not waited for yet; none if it is gone."""
    pids: list[int] = []
    if not _kernel_lists_children():
        with suppress(psutil.NoSuchProcess):
            pids = [child.pid for child in psutil.Process(pid).children()]
        return pids
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            pids += [int(word) for word in _text(f"/proc/{pid}/task/{thread}/children").split()]
    return list(dict.fromkeys(pids))


def descendants(pid: int) -> list[int]:
    """Return the processes below a process, parents before their children."""
    if not _kernel_lists_children():  # each list would walk all processes of the node
        with suppress(psutil.NoSuchProcess):
            return [process.pid for process in psutil.Process(pid).children(recursive=True)]
        return []
    known = dict.fromkeys(children(pid))
    waiting = list(known)
    for parent in waiting:  # grows while it is walked
        new = [child for child in children(parent) if child not in known]
        known |= dict.fromkeys(new)
        waiting += new
    return waiting


def _kernel_lists_children() -> bool:
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")  # noqa: PTH110


class ProcessTree:
    """The job's own processes on this node: `root` and its descendants, without this sampler and hpcrl's own runners.

    Under Slurm the ranks of a step are siblings below one slurmstepd, so the tree starts there.
    """

    def __init__(self, root: int) -> None:
        parent = psutil.Process(root).parent()
        if parent is not None and parent.name().startswith("slurmstepd"):
            root = parent.pid
        self._root = root
        # process -> resident bytes and their maximum so far, at the last reading
        self.sizes: dict[int, tuple[int, int]] = {}
        self.faults = 0  # number of pages requested from the kernel so far that were in memory (minor faults)
        # whether some process was seen that does not wait for its children
        self.unreaped = False
        self._cpu = 0.0
        self._switches: dict[tuple[int, str], int] = {}  # (thread, start) of the threads that lived at the last reading
        self._gone = 0  # context switches of ended threads, at their last reading

    def processes(self) -> list[int]:
        """Return the process ids, the root first."""
        return [pid for pid in (self._root, *descendants(self._root)) if pid != os.getpid()]

    def read(self) -> dict[str, float]:
        """Return CPU seconds so far, resident bytes, processes, threads, bytes read and written, context switches.

        The parent that waited for an ended process has its CPU time, so processes shorter than an interval (compilers)
        count too. Cumulative values never decrease.
        """
        ticks = threads = count = faults = 0
        moved = {"read_bytes": 0, "write_bytes": 0}
        sizes: dict[int, tuple[int, int]] = {}
        space: dict[int, tuple[str, str]] = {}  # process -> its address space's size and resident pages
        switches: dict[tuple[int, str], int] = {}
        for pid in self.processes():
            try:
                head, _, rest = _text(f"/proc/{pid}/stat").rpartition(")")
            except OSError:
                continue
            fields = rest.split()
            if head.partition("(")[2].startswith(_NOT_THE_WORKLOAD):
                ticks += int(fields[13]) + int(fields[14])  # of the children that it has waited for
                continue
            ticks += sum(int(field) for field in fields[11:15])  # own and ended children's, user and system
            faults += int(fields[7])
            threads += int(fields[17])
            count += 1
            try:
                for line in _text(f"/proc/{pid}/io").splitlines():
                    name, _, value = line.partition(": ")
                    if name in moved:
                        moved[name] += int(value)
                most = 0
                for line in _text(f"/proc/{pid}/status").splitlines():
                    if line.startswith("VmHWM:"):
                        most = 1024 * int(line.split()[1])
                    elif line.startswith("SigIgn:"):
                        self.unreaped |= bool(int(line.split()[1], 16) & _SIGCHLD)
                space[pid] = fields[20], fields[21]
                if (
                    space.get(int(fields[1])) != space[pid]
                ):  # otherwise it has not called exec yet and has its parent's memory
                    resident = int(fields[21]) * _PAGE
                    sizes[pid] = resident, max(most, resident)
                for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
                    status = _text(f"/proc/{pid}/task/{thread}/status").splitlines()[-2:]
                    switches[int(thread), fields[19]] = sum(int(line.rpartition("\t")[2]) for line in status)
            except (OSError, ValueError):  # of another user, or gone
                continue
        self.sizes, self.faults = sizes, faults
        self._cpu = max(self._cpu, ticks / _TICKS)
        self._gone += sum(number for thread, number in self._switches.items() if thread not in switches)
        self._switches = switches
        return {
            "cpu_seconds": self._cpu,
            "rss": sum(resident for resident, _ in sizes.values()),
            "processes": count,
            "threads": threads,
            "read_bytes": moved["read_bytes"],
            "written_bytes": moved["write_bytes"],
            "context_switches": self._gone + sum(switches.values()),
        }

    def pss(self) -> float | None:
        """Return the proportional share of memory of the processes of the last reading, in bytes.

        A shared page is divided among the processes that share it.

        A reading costs milliseconds for a large process, so it is rarer. None if the kernel does not provide it.
        """
        total = None
        for pid in self.sizes:
            try:
                for line in _text(f"/proc/{pid}/smaps_rollup").splitlines():
                    if line.startswith("Pss:"):
                        total = (total or 0.0) + 1024 * int(line.split()[1])
            except (OSError, ValueError):
                continue
        return total


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
        return file.read()
