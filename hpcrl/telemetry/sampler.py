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

from hpcrl.telemetry.processes import ProcessTree

COLUMNS = (
    "time", "unix_time", "machine_cpu_percent", "machine_memory_percent", "cpu_seconds", "rss", "processes",
    "gpu_percent", "gpu_memory", "gpu_power", "gpu_energy",
)  # fmt: skip


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
