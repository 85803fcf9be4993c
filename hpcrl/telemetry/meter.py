"""What a rank's workload used, from counters that the kernel keeps also of processes that nobody samples.

getrusage(2) counts what was waited for, daemons too where the runner adopts them, but no child of a process that ignores
SIGCHLD. The kernel's software counter ``task-clock`` (perf_event_open(2)) counts these as well: whatever the workload
starts inherits it. A site may forbid it (``kernel.perf_event_paranoid`` above 2, a container's seccomp), and on a virtual
machine it counts time that the hypervisor gave to others: so it is asked only where getrusage cannot know.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
import threading
import time
from typing import NamedTuple

# perf_event_open(2): number of the system call, and what <linux/perf_event.h> calls these.
_SYSTEM_CALL = {"x86_64": 298, "aarch64": 241, "ppc64le": 319}
_TYPE_SOFTWARE, _TASK_CLOCK, _ATTR_SIZE, _FD_CLOEXEC = 1, 1, 128, 8
_INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HV = 1 << 1, 1 << 5, 1 << 6


class Usage(NamedTuple):
    """What a workload used.

    Args:
        cpu_seconds: user and system, of the processes that were waited for, their threads included.
        counted_seconds: of all processes, by ``task-clock``; None where it cannot be had.
        context_switches: of the processes that were waited for.
        largest_process: most resident bytes of any one process that was waited for; None if it cannot be known.
    """

    cpu_seconds: float
    counted_seconds: float | None
    context_switches: int
    largest_process: int | None


class Meter:
    """Counts from its making on. Make it in the main thread, after the sampler has started and before the workload does.

    Args:
        within: the workload runs in this process (built-in training); else it is what this process starts.
    """

    def __init__(self, within: bool) -> None:
        self._within = within
        self._clock = time.pthread_getcpuclockid(threading.main_thread().ident or 0)
        self._counter = _open_task_clock()
        self._own = time.clock_gettime(self._clock)
        self._before = _usage(within)
        # A forked process has its parent's memory until it calls exec: less than that says nothing.
        self._floor = max(_own_peak(), _largest_child())

    def counted_seconds(self) -> float | None:
        """Return ``task-clock`` so far; any thread may ask. None where it cannot be had."""
        if self._counter is None:
            return None
        counted = struct.unpack("Q", os.read(self._counter, 8))[0] / 1e9
        return float(counted if self._within else max(0.0, counted - (time.clock_gettime(self._clock) - self._own)))

    def usage(self) -> Usage:
        """Return what the workload used, once all of its processes have been waited for."""
        seconds, switches = (now - before for now, before in zip(_usage(self._within), self._before, strict=True))
        largest = _largest_child()
        return Usage(seconds, self.counted_seconds(), int(switches), largest if largest > self._floor else None)


def _usage(within: bool) -> tuple[float, float]:
    """Return CPU seconds and context switches of the processes that were waited for and, if asked, of this one."""
    found = [resource.getrusage(resource.RUSAGE_CHILDREN)]
    if within:
        found.append(resource.getrusage(resource.RUSAGE_SELF))
    return sum(each.ru_utime + each.ru_stime for each in found), sum(each.ru_nvcsw + each.ru_nivcsw for each in found)


def _largest_child() -> int:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def _own_peak() -> int:
    """Return the most bytes of this process since its exec; its `ru_maxrss` holds those of what started it, too."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:  # noqa: PTH123
        for line in file:
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    return 0


def _open_task_clock() -> int | None:
    """Return a file descriptor of a counter for this thread and all that it will start; None where that is forbidden."""
    number = _SYSTEM_CALL.get(platform.machine())
    if number is None:
        return None
    attributes = bytearray(_ATTR_SIZE)
    flags = (
        _INHERIT | _EXCLUDE_KERNEL | _EXCLUDE_HV
    )  # all that an unprivileged user may ask for; a clock counts the same
    struct.pack_into("=IIQQQQQ", attributes, 0, _TYPE_SOFTWARE, _ATTR_SIZE, _TASK_CLOCK, 0, 0, 0, flags)
    buffer = (ctypes.c_char * _ATTR_SIZE).from_buffer(attributes)
    # pid 0: this thread; cpu -1: any; no group.
    descriptor = int(ctypes.CDLL(None).syscall(number, buffer, 0, -1, -1, _FD_CLOEXEC))
    return descriptor if descriptor >= 0 else None
