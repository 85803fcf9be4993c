"""Pass a command's standard output on to the log, and read numbers from its lines by patterns.

A thread passes the bytes on unchanged. The lines are matched in the main thread, because only there a signal can end a
match that takes too long.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import termios
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import IO, Any

LONGEST_LINE = 4096  # maximum bytes of a line that are matched
MOST_VALUES = 2_000_000
_CHUNK = 65_536
_MOST_WAITING = 32 * 2**20  # maximum bytes that wait for a match; with more, the program waits
_LINES = 64  # maximum lines that are matched together
_MATCH_SECONDS = 1.0  # maximum CPU seconds for them; a slower pattern is no longer used
_LOOK_SECONDS = 0.25
_CLOSE_SECONDS = 10.0
Entry = dict[str, Any]  # time (Unix seconds), step (or None), and the value by its name


class _TooSlow(Exception):
    """Some lines exceed their time limit."""


class Output:
    """Passes on the bytes of a pipe, and gives the values in them.

    Args:
        pipe: the reading end, which is closed at the end.
        patterns: a regular expression by the name of the value, with one group for the number and optionally one named `step`.
        note: called, from any thread, with sentences for the reader of the values.
        target: the file for the bytes.
    """

    def __init__(
        self, pipe: IO[bytes], patterns: Mapping[str, str], note: Callable[[str], None], target: int = 1
    ) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._patterns = {name: _compiled(pattern) for name, pattern in patterns.items()}
        self._note = note
        self._target: int | None = target
        self._file = pipe
        self._pipe = pipe.fileno()
        self._room = threading.Condition()
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._bytes = 0
        self._passed = 0
        self._line = b""  # the beginning of an incomplete line
        self._cut = False
        self._left = MOST_VALUES
        self._trying = ""
        self._limited = threading.current_thread() is threading.main_thread()
        self._matching = False
        if self._limited:  # not reset, because a signal may come late; a program that is started later gets the default
            signal.signal(signal.SIGPROF, self._too_slow)
        self._ended, self._end = os.pipe()
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    def values(self) -> Iterator[Entry]:
        """Give the values of the lines since the last call."""
        until = time.monotonic() + _LOOK_SECONDS
        while self._waiting and time.monotonic() < until:
            with self._room:
                at, chunk = self._waiting.popleft()
                self._bytes -= len(chunk)
                self._room.notify()
            yield from self._match(at, self._lines(chunk))

    def close(self) -> Iterator[Entry]:
        """Give the values of the remaining lines, without waiting for a process that still has the pipe open."""
        os.write(self._end, b".")
        deadline, passed = time.monotonic() + _CLOSE_SECONDS, self._passed
        while self._thread.is_alive():
            yield from self.values()
            self._thread.join(0.02)
            if self._passed != passed:
                deadline, passed = time.monotonic() + _CLOSE_SECONDS, self._passed
            elif time.monotonic() > deadline:
                self._note("the end of the standard output could not be passed on, because its reader does not read")
                break
        while self._waiting:
            yield from self.values()
        yield from self._match(time.time(), [self._line])
        if not self._thread.is_alive():
            self._file.close()
            os.close(self._end)
            os.close(self._ended)

    def _pass_on(self) -> None:
        ready = select.poll()
        ready.register(self._pipe, select.POLLIN)
        ready.register(self._ended, select.POLLIN)
        left: int | None = None  # after the end of the command: the bytes that it left in the pipe
        while left is None or left > 0:
            events = dict(ready.poll())
            if left is None and self._ended in events:
                left = _available(self._pipe)
                continue
            chunk = os.read(self._pipe, _CHUNK)
            if not chunk:
                return
            if left is not None:
                left -= len(chunk)
            self._write(chunk)
            with self._room:
                self._room.wait_for(lambda: self._bytes < _MOST_WAITING)
                self._waiting.append((time.time(), chunk))
                self._bytes += len(chunk)

    def _write(self, chunk: bytes) -> None:
        rest = memoryview(chunk)
        while rest and self._target is not None:
            try:
                written = os.write(self._target, rest)
            except BlockingIOError:
                select.select([], [self._target], [])
                continue
            except OSError as error:
                self._note(f"the standard output could not be passed on: {error.strerror}")
                self._target = None
                return
            self._passed += written
            rest = rest[written:]

    def _lines(self, chunk: bytes) -> list[bytes]:
        """Return the lines that end in a chunk, each cut to the maximum that is matched. A carriage return ends a line, too."""
        *lines, rest = (self._line + chunk).replace(b"\r", b"\n").split(b"\n")
        self._line = rest[: LONGEST_LINE + 1]
        return lines

    def _match(self, at: float, lines: list[bytes]) -> Iterator[Entry]:
        for first in range(0, len(lines), _LINES):
            some = iter(lines[first : first + _LINES])
            while self._patterns:
                entries: list[Entry] = []
                try:
                    with self._limit():
                        for line in some:
                            self._search(line, at, entries)
                except _TooSlow:
                    self._patterns.pop(self._trying, None)
                    self._note(
                        f"metrics.stdout.{self._trying}: the pattern needs more than {_MATCH_SECONDS:g} s for some lines and is no longer used: write a simpler one"
                    )
                    yield from self._counted(entries)
                    continue
                yield from self._counted(entries)
                break

    @contextmanager
    def _limit(self) -> Iterator[None]:
        """Raise :class:`_TooSlow` after so much CPU time. Only the main thread can do this."""
        if not self._limited:
            yield
            return
        try:
            self._matching = True
            signal.setitimer(signal.ITIMER_PROF, _MATCH_SECONDS)
            yield
        finally:
            self._matching = False
            signal.setitimer(signal.ITIMER_PROF, 0)

    def _too_slow(self, number: int, frame: FrameType | None) -> None:
        if self._matching:
            raise _TooSlow

    def _search(self, line: bytes, at: float, found: list[Entry]) -> None:
        if len(line) > LONGEST_LINE:
            line = line[:LONGEST_LINE]
            if not self._cut:
                self._cut = True
                self._note(
                    f"metrics.stdout: expected lines of at most {LONGEST_LINE} bytes, got a longer one: its rest is not read"
                )
        text = line.decode("utf-8", "replace")
        for name, (pattern, group) in self._patterns.items():
            self._trying = name
            for match in pattern.finditer(text):
                number = _number(match[group])
                if number is not None:
                    step = _number(match["step"]) if "step" in pattern.groupindex else None
                    whole = int(step) if step is not None and abs(step) < 2**62 else None
                    found.append({"time": at, "step": whole, name: number})

    def _counted(self, found: list[Entry]) -> Iterator[Entry]:
        for entry in found:
            if self._left == 0:
                self._note(f"metrics.stdout: expected at most {MOST_VALUES} values, got more: the others are left out")
                self._patterns.clear()
                return
            self._left -= 1
            yield entry


def _compiled(pattern: str) -> tuple[re.Pattern[str], int]:
    """Return a pattern, and the index of the group with the number."""
    compiled = re.compile(pattern)
    step = compiled.groupindex.get("step")
    return compiled, 2 if step == 1 else 1


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _available(pipe: int) -> int:
    """Return the number of bytes in a pipe."""
    return int(struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))[0])
