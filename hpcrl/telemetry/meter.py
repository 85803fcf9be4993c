"""The resources of a rank's workload, from counters that the kernel also keeps for processes that no sample sees.

getrusage(2) counts processes that were waited for, also daemons if the runner adopts them, but not the children of a
process that ignores SIGCHLD. The kernel's software counter ``task-clock`` (perf_event_open(2)) also counts these: all
processes of the workload inherit it. A site may forbid it (``kernel.perf_event_paranoid`` above 2, a container's seccomp).
On a virtual machine it counts time that the hypervisor gave to others. So it is used only where getrusage misses processes.
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

# perf_event_open(2): number of the system call, and constants of <linux/perf_event.h>.
_SYSTEM_CALL = {"x86_64": 298, "aarch64": 241, "ppc64le": 319}
_TYPE_SOFTWARE, _TASK_CLOCK, _ATTR_SIZE, _FD_CLOEXEC = 1, 1, 128, 8
_INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HV = 1 << 1, 1 << 5, 1 << 6


class Usage(NamedTuple):
    """The resources that a workload used.

    Args:
        cpu_seconds: user and system, of the processes that were waited for, their threads included.
        counted_seconds: of all processes, by ``task-clock``; None if it is not available.
        context_switches: of the processes that were waited for.
        largest_process: maximum resident bytes of one process that was waited for; None if it is unknown.
    """

    cpu_seconds: float
    counted_seconds: float | None
    context_switches: int
    largest_process: int | None


class Meter:
    """Counts from its creation. Create it in the main thread, after the start of the sampler and before that of the workload.

    Args:
        within: the workload runs in this process (built-in training); otherwise in processes that this one starts.
    """

    def __init__(self, within: bool) -> None:
        self._within = within
        self._clock = time.pthread_getcpuclockid(threading.main_thread().ident or 0)
        self._counter = _open_task_clock()
        self._own = time.clock_gettime(self._clock)
        self._before = _usage(within)
        # A forked process has its parent's memory until it calls exec: a smaller value has no meaning.
        self._floor = max(own_peak(), _largest_child())

    def counted_seconds(self) -> float | None:
        """Return ``task-clock`` so far; any thread may call this. None if it is not available."""
        if self._counter is None:
            return None
        counted = struct.unpack("Q", os.read(self._counter, 8))[0] / 1e9
        return float(counted if self._within else max(0.0, counted - (time.clock_gettime(self._clock) - self._own)))

    def usage(self) -> Usage:
        """Return the resources of the workload, when all of its processes have been waited for."""
        seconds, switches = (now - before for now, before in zip(_usage(self._within), self._before, strict=True))
        largest = _largest_child()
        return Usage(seconds, self.counted_seconds(), int(switches), largest if largest > self._floor else None)


def _usage(within: bool) -> tuple[float, float]:
    """Return CPU seconds and context switches of the processes that were waited for and, on request, of this one."""
    usages = [resource.getrusage(resource.RUSAGE_CHILDREN)]
    if within:
        usages.append(resource.getrusage(resource.RUSAGE_SELF))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages), sum(
        usage.ru_nvcsw + usage.ru_nivcsw for usage in usages
    )


def _largest_child() -> int:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def own_peak() -> int:
    """Return the maximum bytes of this process since its exec; its `ru_maxrss` also includes the process that started it."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:  # noqa: PTH123
        for line in file:
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    return 0


def _open_task_clock() -> int | None:
    """Return a file descriptor of a counter for this thread and all that it will start; None if that is forbidden."""
    number = _SYSTEM_CALL.get(platform.machine())
    if number is None:
        return None
    attributes = bytearray(_ATTR_SIZE)
    flags = (
        _INHERIT | _EXCLUDE_KERNEL | _EXCLUDE_HV
    )  # all that an unprivileged user may request; the clock counts the same
    struct.pack_into("=IIQQQQQ", attributes, 0, _TYPE_SOFTWARE, _ATTR_SIZE, _TASK_CLOCK, 0, 0, 0, flags)
    buffer = (ctypes.c_char * _ATTR_SIZE).from_buffer(attributes)
    # pid 0: this thread; cpu -1: any; no group.
    descriptor = int(ctypes.CDLL(None).syscall(number, buffer, 0, -1, -1, _FD_CLOEXEC))
    return descriptor if descriptor >= 0 else None
