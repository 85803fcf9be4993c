"""py-spy: which function each thread was in, 100 times a second, seen by another process. It costs the workload little."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.profiles import Frame, functions_of, place_of, plain_name
from hpcrl.run.profilers.interface import Found

RATE = 100  # samples a second
_SECONDS = 10.0  # to begin, and 6 times as many to write
_SET_PTRACER, _ANY = 0x59616D61, -1  # of prctl(2): who may read this process


class Tool:
    """Profiles with py-spy, which reads the memory of another process."""

    def __init__(self, framework: str | None = None) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._place = Path()
        self._log: IO[bytes] | None = None

    def start(self, scratch: Path) -> None:
        self._place = scratch
        allow_reading()
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        self._attach(os.getpid(), {**os.environ, "PATH": path})

    def look(self) -> bool:
        return False

    def attach(self, pid: int, environment: Mapping[str, str]) -> None:
        """Begin to look at a process and its children.

        Raises:
            UsageError: py-spy is not installed.
        """
        self._attach(pid, environment, "--subprocesses")

    def _attach(self, pid: int, environment: Mapping[str, str], *options: str) -> None:
        program = shutil.which("py-spy", path=environment.get("PATH"))
        if program is None:
            raise UsageError("it is not on PATH in the cell's environment: add it there")
        words = [
            program,
            "record",
            "--pid",
            str(pid),
            "--format",
            "raw",
            "--rate",
            str(RATE),
            "--function",
            "--nonblocking",
        ]
        self._log = (self._place / "log").open("wb")
        self._process = subprocess.Popen(
            [*words, *options, "--full-filenames", "--output", str(self._place / "stacks.txt")],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=dict(environment),
        )
        until = time.monotonic() + _SECONDS
        while b"Sampling process" not in self._said() and self._process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(timeout=6 * _SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._log:
            self._log.close()

    def abandon(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._log:
            self._log.close()

    def processes(self) -> list[int]:
        """Return its process."""
        return [self._process.pid] if self._process else []

    def write(self, scratch: Path) -> Found:
        file = scratch / "stacks.txt"
        if not file.exists():
            lines = [line.strip() for line in self._said().decode(errors="replace").splitlines() if line.strip()]
            raise HpcrlError(f"it saw nothing: {lines[-1] if lines else 'it said nothing'}")
        tree = _tree(file.read_text(encoding="utf-8", errors="replace"))
        return Found(file, tree.value, functions_of(tree), tree)

    def wrapped(self, words: list[str], scratch: Path) -> list[str]:
        self._place = scratch
        return words

    def read(self, scratch: Path) -> Found | None:
        return self.write(scratch)

    def _said(self) -> bytes:
        return (self._place / "log").read_bytes()


def _tree(text: str) -> Frame:
    """Read collapsed stacks, whose frames have whole paths."""
    tree = Frame("all")
    for line in text.splitlines():
        names, _, samples = line.rpartition(" ")
        if names and samples.isdecimal():
            tree.add([_named(name) for name in names.split(";")], float(samples))
    return tree


def _named(frame: str) -> str:
    if match := re.match(r"process (\d+):", frame):
        return f"process {match[1]}"
    match = re.fullmatch(r"(.*) \((.*?)(?::(\d+))?\)", frame)
    return place_of(match[1], match[2], int(match[3] or 0)) if match else plain_name(frame)


def allow_reading() -> None:
    """Let other processes of the user read this one, also where the kernel (Yama) only allows its ancestors to."""
    ctypes.CDLL(None).prctl(_SET_PTRACER, ctypes.c_ulong(_ANY), 0, 0, 0)
