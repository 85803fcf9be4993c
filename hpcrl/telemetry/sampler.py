"""The sampler: one process per node that reads the machine and the job's own processes once an interval.

Run as ``python -m hpcrl.telemetry.sampler ROOT_PID INTERVAL``. It writes one JSON line per sample to standard
output and ends when standard input closes, that is, when the process that started it is gone. It imports only
psutil and, where there is a driver, NVML. A failing sensor is left out of the line; the rest goes on.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from contextlib import suppress
from typing import Any

import psutil

COLUMNS = (
    "time", "unix_time", "machine_cpu_percent", "machine_memory_percent", "cpu_seconds", "rss", "processes",
    "gpu_percent", "gpu_memory", "gpu_power", "gpu_energy",
)  # fmt: skip


class ProcessTree:
    """The job's own processes on this node: `root` and all below it, this sampler left out.

    Under Slurm the ranks of a step are siblings below one slurmstepd, so the tree then starts there.
    """

    def __init__(self, root: int) -> None:
        process = psutil.Process(root)
        parent = process.parent()
        if parent is not None and parent.name().startswith("slurmstepd"):
            process = parent
        self._root = process

    def read(self) -> dict[str, float]:
        """Return CPU seconds so far, resident bytes and the number of processes.

        The CPU time of processes that have ended stands with the parent that waited for them, so that compilers
        which live for less than an interval are counted too.
        """
        cpu_seconds = 0.0
        rss = count = 0
        for process in [self._root, *self._root.children(recursive=True)]:
            if process.pid == os.getpid():
                continue
            try:
                with process.oneshot():
                    cpu_seconds += sum(process.cpu_times()[:4])  # its own and its ended children's, user and system
                    rss += process.memory_info().rss
                count += 1
            except psutil.Error:
                continue
        return {"cpu_seconds": cpu_seconds, "rss": rss, "processes": count}


class Gpus:
    """NVML readings of the visible GPUs; without a driver, none."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._energy: float | None = None
        try:
            import pynvml

            from hpcrl.telemetry.provenance import gpu_handles

            pynvml.nvmlInit()
            self._nvml = pynvml
            self._handles = gpu_handles(pynvml)
        except Exception:  # whatever a vendor's library raises: there is nothing to read
            self._handles = []

    def read(self) -> dict[str, float]:
        if not self._handles:
            return {}
        nvml = self._nvml
        readings: dict[str, float] = {}
        sensors = {
            "gpu_percent": lambda each: nvml.nvmlDeviceGetUtilizationRates(each).gpu / len(self._handles),
            "gpu_memory": lambda each: nvml.nvmlDeviceGetMemoryInfo(each).used,
            "gpu_power": lambda each: nvml.nvmlDeviceGetPowerUsage(each) / 1e3,
            "gpu_energy": lambda each: nvml.nvmlDeviceGetTotalEnergyConsumption(each) / 1e3,
        }
        for name, sensor in sensors.items():
            try:
                readings[name] = float(sum(map(sensor, self._handles)))
            except nvml.NVMLError:
                continue
        if "gpu_energy" in readings:
            self._energy = readings["gpu_energy"] if self._energy is None else self._energy
            readings["gpu_energy"] -= self._energy
        return readings


def main(root: int, interval: float) -> None:
    """Sample until standard input closes, and once more then, so that a short run has a sample too."""
    tree = ProcessTree(root)
    gpus = Gpus()
    psutil.cpu_percent()  # the first call only starts the interval that the next one reports
    due = time.monotonic()
    last = False
    while not last:
        due += interval
        ready, _, _ = select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))
        last = bool(ready) and not os.read(sys.stdin.fileno(), 1)
        sample: dict[str, float] = {"monotonic": time.monotonic(), "unix_time": time.time()}
        for sensor in (_machine, tree.read, gpus.read):
            try:
                sample.update(sensor())
            except (psutil.Error, OSError) as error:
                print(f"hpcrl sampler: {error}", file=sys.stderr)
        sys.stdout.write(json.dumps(sample) + "\n")
        sys.stdout.flush()


def _machine() -> dict[str, float]:
    return {
        "machine_cpu_percent": psutil.cpu_percent(),
        "machine_memory_percent": psutil.virtual_memory().percent,
    }


if __name__ == "__main__":
    with suppress(KeyboardInterrupt, BrokenPipeError, psutil.NoSuchProcess):
        main(int(sys.argv[1]), float(sys.argv[2]))
