"""The control group of a Slurm job, with the kernel's own counts for it, in version 1 and version 2."""

from __future__ import annotations

import os
import re
from pathlib import Path

_JOB = re.compile(r"(.*/job_\d+(?:/step_[^/]+)?)(?:/.*)?$")


class ControlGroup:
    """CPU and memory of a job's step as the kernel counts them. Outside of a Slurm job there is no control group of the job.

    Args:
        process: the process whose groups are read; `mounted` and `proc` are the directories of control groups and of processes.
    """

    def __init__(self, process: int | str = "self", mounted: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")):
        self._files: dict[str, tuple[Path, float]] = {}
        self.version: int | None = None
        try:
            lines = (proc / str(process) / "cgroup").read_text().splitlines()
        except OSError:
            return
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if not (match := _JOB.match(path)):
                continue
            group = match[1].lstrip("/")
            if controllers == "":
                for base in (mounted, mounted / "unified"):
                    if (base / group / "cpu.stat").exists():
                        self.version = 2
                        self._files["cpu"] = (base / group / "cpu.stat", 1e-6)
                        self._files["memory"] = (base / group / "memory.current", 1)
                        self._files["memory_peak"] = (base / group / "memory.peak", 1)
                        self._files["memory_limit"] = (base / group / "memory.max", 1)
            elif "cpuacct" in controllers.split(","):
                self.version = self.version or 1
                for name in (controllers, "cpuacct"):
                    if (mounted / name / group / "cpuacct.usage").exists():
                        self._files["cpu"] = (mounted / name / group / "cpuacct.usage", 1e-9)
            elif controllers == "memory":
                self.version = self.version or 1
                place = mounted / "memory" / group
                self._files["memory"] = (place / "memory.usage_in_bytes", 1)
                self._files["memory_peak"] = (place / "memory.max_usage_in_bytes", 1)
                self._files["memory_limit"] = (place / "memory.limit_in_bytes", 1)

    def read(self) -> dict[str, float]:
        """Return ``cgroup_cpu`` (seconds), ``cgroup_memory``, ``cgroup_memory_peak``, ``cgroup_memory_limit`` (bytes)."""
        values = {}
        for name, (path, unit) in self._files.items():
            try:
                text = path.read_text()
            except OSError:
                continue
            if name == "cpu" and self.version == 2:
                text = text.partition("usage_usec ")[2].partition("\n")[0]
            if (value := text.strip()).isdigit() and int(value) < 2**60:  # "max", or near 2^63, is no limit
                values[f"cgroup_{name}"] = int(value) * unit
        return values


def allowed_memory() -> int:
    """Return the bytes that this process may use: the job's limit if it has one, else the machine's memory."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(min(machine, ControlGroup().read().get("cgroup_memory_limit", machine)))
