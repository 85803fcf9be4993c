"""The job's own processes, read from /proc.

Only the job's own are looked at: the kernel lists the children of each thread, so that a reading costs the same on a
node with thousands of other processes. Where a kernel has no such list, psutil walks all of them instead.
"""

from __future__ import annotations

import os

import psutil

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class ProcessTree:
    """The job's own processes on this node: `root` and all below it, this sampler left out.

    Under Slurm the ranks of a step are siblings below one slurmstepd, so the tree then starts there.
    """

    def __init__(self, root: int) -> None:
        parent = psutil.Process(root).parent()
        if parent is not None and parent.name().startswith("slurmstepd"):
            root = parent.pid
        self._root = root
        self._listed = os.path.exists(f"/proc/{root}/task/{root}/children")  # noqa: PTH110

    def processes(self) -> list[int]:
        """Return the process ids, the root first."""
        if not self._listed:
            below = [each.pid for each in psutil.Process(self._root).children(recursive=True)]
            return [pid for pid in (self._root, *below) if pid != os.getpid()]
        found = [self._root]
        for pid in found:  # grows while it is walked
            try:
                for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
                    found += [int(word) for word in _text(f"/proc/{pid}/task/{thread}/children").split()]
            except OSError:
                continue
        return [pid for pid in dict.fromkeys(found) if pid != os.getpid()]

    def read(self) -> dict[str, float]:
        """Return CPU seconds so far, resident bytes, processes, threads, bytes read and written, context switches.

        The CPU time of processes that have ended stands with the parent that waited for them, so that compilers
        which live for less than an interval are counted too. Context switches are those of the main threads.
        """
        ticks = pages = threads = count = 0
        moved = {"read_bytes": 0, "write_bytes": 0}
        switches = 0
        for pid in self.processes():
            try:
                fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
            except OSError:
                continue
            ticks += sum(int(field) for field in fields[11:15])  # own and ended children's, user and system
            threads += int(fields[17])
            pages += int(fields[21])
            count += 1
            try:
                for line in _text(f"/proc/{pid}/io").splitlines():
                    name, _, value = line.partition(": ")
                    if name in moved:
                        moved[name] += int(value)
                for line in _text(f"/proc/{pid}/status").splitlines():
                    if "ctxt_switches" in line:
                        switches += int(line.rpartition("\t")[2])
            except OSError:  # of another user, or gone
                continue
        return {
            "cpu_seconds": ticks / _TICKS,
            "rss": pages * _PAGE,
            "processes": count,
            "threads": threads,
            "read_bytes": moved["read_bytes"],
            "written_bytes": moved["write_bytes"],
            "context_switches": switches,
        }

    def pss(self) -> float | None:
        """Return the proportional share of memory in bytes, shared pages divided among who shares them.

        It costs milliseconds for a large process, so it is read more rarely. None where the kernel does not say.
        """
        total = None
        for pid in self.processes():
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
