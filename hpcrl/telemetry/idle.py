"""How busy a host is before hpcrl's cells run on it: CPU and memory of the whole machine.

A host is measured once for a plan, and again before a cell that starts more than a day later. Cells that start meanwhile
wait. If another cell of hpcrl runs already, nothing is measured.

Cells on one host see each other by names of Unix sockets in Linux's abstract namespace: the kernel removes a name however
its process ends, and a job's private /tmp does not hide it. Any user can take a name: nobody waits for another user's.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from hpcrl.formats.kept import keep_numbers, kept_numbers

DIRECTORY = "idle"
VALID_SECONDS = 24 * 3600.0
_PATIENCE = 30.0  # seconds beyond those of a measurement
_LOOK_SECONDS = 0.1
_LOOKS = (
    20  # before a holder of the turn that is no process of this user is not waited for: just now it may not listen yet
)
_MOST = 4096  # processes that ask whose turn it is
_READINGS = 10
_NOT = "the idle machine was not measured"


@dataclass(frozen=True)
class Baseline:
    """Means over the measurement, in percent of the whole machine; or the reason why there are none."""

    cpu_percent: float | None = None
    memory_percent: float | None = None
    note: str | None = None


def begin_cell(file: Path, seconds: float) -> tuple[Baseline, socket.socket]:
    """Return the baseline of this host, and what marks this process as a running cell until it is closed.

    Args:
        file: the result of this host for the plan.
        seconds: duration of a measurement. 0: none, but the cell still waits for the measurement of another.
    """
    mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        with _turn(seconds + _PATIENCE) as mine:
            if not seconds:
                baseline = Baseline()
            elif mine:
                baseline = _known(file) or _new(file, seconds)
            else:
                baseline = Baseline(
                    note=f"{_NOT}, because another cell's measurement did not end in time, or another user has taken its name"
                )
            mark.bind(f"\0hpcrl-cell-{os.getpid()}-{secrets.token_hex(4)}")
    except OSError as error:
        baseline = Baseline(note=f"{_NOT}: {error.strerror}")
    return baseline, mark


@contextmanager
def _turn(patience: float) -> Iterator[bool]:
    """Wait until no other process of this user decides or measures; tell whether that came true in time."""
    name, until = f"\0hpcrl-idle-{os.getuid()}", time.monotonic() + patience
    looks, known = 0, False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as turn:
        while True:
            try:
                turn.bind(name)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                turn.listen(_MOST)
                yield True
                return
            looks += 1
            known = known or _owner(name) == os.getuid()  # asked until it is known: a question stays in its queue
            if (looks > _LOOKS and not known) or time.monotonic() > until:
                yield False
                return
            time.sleep(_LOOK_SECONDS)


def _owner(name: str) -> int | None:
    """Return the user whose process listens at a name; None if nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(name)
        except OSError:
            return None
        _, user, _ = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(user)


def _known(file: Path) -> Baseline | None:
    """Return the result of this host, if there is one that is still valid."""
    numbers = kept_numbers(file) or {}
    if set(numbers) != {"cpu_percent", "memory_percent", "unix_time"}:
        return None
    percents = numbers["cpu_percent"], numbers["memory_percent"]
    valid = 0 <= time.time() - numbers["unix_time"] < VALID_SECONDS
    return Baseline(*percents) if valid and all(0 <= percent <= 100 for percent in percents) else None


def _new(file: Path, seconds: float) -> Baseline:
    if b"@hpcrl-cell-" in Path("/proc/net/unix").read_bytes():  # names of other users may be any bytes
        return Baseline(note=f"{_NOT}, because another cell of hpcrl ran on it")
    baseline = measure(seconds)
    percents = {"cpu_percent": baseline.cpu_percent, "memory_percent": baseline.memory_percent}
    keep_numbers(file, percents | {"unix_time": time.time()})
    return baseline


def measure(seconds: float) -> Baseline:
    """Measure for so many seconds, by ``psutil.cpu_percent`` and ``psutil.virtual_memory().percent``."""
    psutil.cpu_percent()
    memory = []
    for _ in range(_READINGS):
        time.sleep(seconds / _READINGS)
        memory.append(psutil.virtual_memory().percent)
    return Baseline(psutil.cpu_percent(), sum(memory) / len(memory))
