"""The sampler: one process per node that reads the machine, the job's own processes and the GPUs once per interval.

Run as ``python -m hpcrl.telemetry.sampler ROOT_PID INTERVAL``. It writes one JSON line per sample to standard
output and ends when standard input closes, that is, when the process that started it is gone. It imports only
psutil and, with a driver, NVML. A sensor that fails is reported once, in a separate line, and the others
continue. Each line has the cost of the sampler itself so far.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil

from hpcrl.telemetry.cgroup import ControlGroup
from hpcrl.telemetry.memory import PeakMemory
from hpcrl.telemetry.packages import Packages
from hpcrl.telemetry.processes import ProcessTree

# To divide shared memory among processes the kernel walks all their pages: milliseconds for a large process.
_PSS_SECONDS = 10.0
# Maximum shares of one core at one sample per second: for the tree of processes, and for PSS while memory is stable,
# while forked processes may copy pages, and while more is resident than ever before.
_TREE_SHARE, _PSS_SHARE, _PARTING_SHARE, _GROWTH_SHARE = 0.002, 0.001, 0.004, 0.01
_FIRST_SECONDS = 0.05  # without an early reading nothing is known about the memory of a short job
Reading = dict[str, Any]


class Machine:
    """The whole node, as the papers measured it."""

    def __init__(self) -> None:
        psutil.cpu_percent(percpu=True)  # the first call only starts the interval of the next one

    def read(self) -> Reading:
        cores = psutil.cpu_percent(percpu=True)
        return {
            "machine_cpu_percent": sum(cores) / len(cores),
            "core_percent": cores,
            "machine_memory_percent": psutil.virtual_memory().percent,
            "machine_swap_percent": psutil.swap_memory().percent,
            "machine_load": os.getloadavg()[0],
        }


class Own:
    """The job's control group, if Slurm made one, and its own processes.

    A job with hundreds of processes is read less often than once per interval, so that sampling costs little.
    """

    def __init__(self, root: int, interval: float) -> None:
        self.tree = ProcessTree(root)
        self._group = ControlGroup(root)
        self._rate = max(1.0, 1.0 / interval)
        self._tree_at = self._pss_at = self._parting_at = self._growth_at = float("-inf")
        self._faults = 0
        self._memory = PeakMemory()

    def read(self, last: bool = False) -> Reading:
        reading: Reading = dict(self._group.read())
        if not last and time.monotonic() < self._tree_at:
            return reading
        before = time.process_time()
        reading |= self.tree.read()
        now, spent = time.monotonic(), time.process_time()
        self._tree_at = now + (spent - before) / (_TREE_SHARE * self._rate)
        pss = None
        if last or self._pss_is_due(now):
            pss = reading["pss"] = self.tree.pss()
            cost = (time.process_time() - spent) / self._rate
            self._pss_at = now + max(_PSS_SECONDS, cost / _PSS_SHARE)
            self._parting_at, self._growth_at = now + cost / _PARTING_SHARE, now + cost / _GROWTH_SHARE
            self._faults = self.tree.faults
        reading["memory_peak"] = self._memory.take(self.tree.sizes, pss)
        reading["unreaped"] = self.tree.unreaped
        return reading

    def _pss_is_due(self, now: float) -> bool:
        sizes, faults = self.tree.sizes, self.tree.faults - self._faults
        return (
            now >= self._pss_at
            or (now >= self._growth_at and self._memory.grows(sizes))
            or (now >= self._parting_at and self._memory.may_part(sizes, faults))
        )


class Gpus:
    """NVML readings of the node's visible GPUs; without a driver, none. Values that a GPU does not support are left out."""

    def __init__(self, own: Own, note: Callable[[Exception], None]) -> None:
        self._handles: list[Any] = []
        self._first: list[float] | None = None
        self._own = own
        self._note = note
        try:
            import pynvml
        except ImportError:
            return
        from hpcrl.telemetry.provenance import gpu_handles

        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            self._handles = list(gpu_handles(pynvml).values())
        except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
            return  # no GPU here
        except Exception as error:  # for example, driver and library have different versions, and nothing can be read
            note(error)
        with suppress(pynvml.NVMLError):  # a slice of a GPU has no counter
            self._first = [self._joules(gpu) for gpu in self._handles]

    def read(self) -> Reading:
        if not self._handles:
            return {}
        nvml = self._nvml
        readings: dict[str, list[float]] = {}
        sensors: dict[str, Callable[[Any], float]] = {
            "percent": lambda gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
            "memory": self._memory,
            "power": lambda gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
            "energy": self._joules,
            "temperature": lambda gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
            "clock": lambda gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
            "throttle": lambda gpu: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu),
            "own_memory": self._own_memory,
        }
        for name, sensor in sensors.items():
            try:
                readings[name] = [float(sensor(gpu)) for gpu in self._handles]
            except nvml.NVMLError_NotSupported:
                continue
            except nvml.NVMLError as error:
                self._note(error)
        if "energy" in readings:
            self._first = self._first or readings["energy"]
            readings["energy"] = [now - first for now, first in zip(readings["energy"], self._first, strict=True)]
        reading: Reading = {
            f"each_gpu_{name}": readings[name] for name in ("percent", "memory", "power") if name in readings
        }
        merge: dict[str, Callable[[list[float]], float]] = {
            "percent": lambda values: sum(values) / len(values),
            "clock": lambda values: sum(values) / len(values),
            "temperature": max,
            "throttle": lambda values: float(_all_bits(values)),
        }
        return reading | {f"gpu_{name}": merge.get(name, sum)(values) for name, values in readings.items()}

    def _joules(self, gpu: Any) -> float:
        return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3)

    def _memory(self, gpu: Any) -> float:
        """Return the memory that nvidia-smi calls used; the first version of the call includes the driver's reserve."""
        nvml = self._nvml
        try:
            return float(nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2).used)
        except nvml.NVMLError_FunctionNotFound:  # a driver before 510
            return float(nvml.nvmlDeviceGetMemoryInfo(gpu).used)

    def _own_memory(self, gpu: Any) -> float:
        own = set(self._own.tree.processes())
        running = self._nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
        return float(sum(process.usedGpuMemory or 0 for process in running if process.pid in own))


def _all_bits(values: list[float]) -> int:
    bits = 0
    for value in values:
        bits |= int(value)
    return bits


def main(root: int, interval: float) -> None:
    """Sample until standard input closes, and once more after that, so that a short run also has a sample."""
    last = False
    noted: set[str] = set()

    def note(error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if text not in noted:
            noted.add(text)
            print(json.dumps({"event": f"a sensor failed: {text}"}), flush=True)

    own = Own(root, interval)
    sensors: list[Callable[[], Reading]] = [
        lambda: own.read(last),
        Machine().read,
        Gpus(own, note).read,
        Packages().read,
    ]
    due, gap = time.monotonic(), min(interval, _FIRST_SECONDS)
    while not last:
        due = max(due + gap, time.monotonic())  # no burst of samples after a pause of the node
        ready, _, _ = select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))
        last = bool(ready) and not os.read(sys.stdin.fileno(), 1)
        sample: Reading = {"monotonic": time.monotonic(), "unix_time": time.time()}
        whole = gap == interval or last
        gap = min(interval, 2 * gap)
        for sensor in sensors if whole else sensors[:1]:
            try:
                sample.update(sensor())
            except Exception as error:  # any error of a sensor: the others continue
                note(error)
        sample["sampler_cpu"] = time.process_time()
        sample["sampler_memory"] = _resident_memory()
        print(json.dumps(sample), flush=True)


def _resident_memory() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # Slurm signals every process of a step, but this one ends with its rank
    with suppress(KeyboardInterrupt, BrokenPipeError, psutil.NoSuchProcess):
        main(int(sys.argv[1]), float(sys.argv[2]))
