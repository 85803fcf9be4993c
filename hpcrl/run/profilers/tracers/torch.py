"""torch.profiler: the operators of PyTorch on the CPU and, if there is one, the GPU, as a Chrome trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from hpcrl.formats.traces import TRACE, Event, Thread

_MICRO = 1e-6
_running: list[Any] = []


def start(directory: Path) -> None:
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    _running.append(profile(activities=activities))
    _running[-1].start()


def stop(directory: Path) -> Any:
    """End it. The events are read later, by :func:`written`."""
    profiler = _running.pop()
    profiler.stop()
    return profiler


def written(found: Any, directory: Path) -> tuple[Path, list[Thread]]:
    """Write the trace, and return its file and its threads."""
    file = directory / f"profile{TRACE}"
    found.export_chrome_trace(str(file))
    threads: dict[tuple[str, int], Thread] = {}
    for event in found.events():
        device = str(event.device_type).rpartition(".")[2]
        thread = threads.setdefault((device, event.thread), Thread(device, f"{device} {len(threads)}"))
        span = event.time_range
        thread.events.append(Event(event.name, _MICRO * span.start, _MICRO * (span.end - span.start)))
    return file, list(threads.values())
