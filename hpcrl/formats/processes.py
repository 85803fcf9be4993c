"""The identity of a process, as text by which another process can find out whether it still runs."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil


def this_process() -> dict[str, Any]:
    """Return text that identifies this process among all processes, on any host and after any restart."""
    process = psutil.Process()
    return {
        "host": socket.gethostname(),
        "boot": _boot(),
        "pid": process.pid,
        "process_started": process.create_time(),
    }


def lives(process: Mapping[str, Any]) -> bool | None:
    """Tell whether a process lives; None if that cannot be seen from here, or if the description is damaged."""
    try:
        if process["host"] != socket.gethostname() or process["boot"] != _boot():
            return None
        candidate = psutil.Process(int(process["pid"]))
        same = abs(candidate.create_time() - float(process["process_started"])) <= 1
        return same and candidate.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except (ValueError, KeyError, TypeError, psutil.Error):
        return None


def end(process: Mapping[str, Any]) -> None:
    """Ask a process of this host to end, if it still lives."""
    if lives(process):
        with suppress(ProcessLookupError):
            os.kill(int(process["pid"]), signal.SIGTERM)


def _boot() -> str:
    """Return text that identifies this boot of the host's kernel and this container."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + str(Path("/proc/self/ns/pid").readlink())
    return ""
