"""One message at the end of `hpcrl submit --wait --retry`, not one for each round.

    PLAN/following      touched every few seconds by the process that follows the plan and will submit retries
    PLAN/message-owed   the last job of a chain has left the message to that process

The last job of a round sends no message while a process follows and cells are left to retry. The process that follows
sends an owed message when it submits nothing more, for any reason. The process that removes ``message-owed`` sends it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from hpcrl.formats.lease import DEAD_SECONDS

FILE = "following"
OWED = "message-owed"
HEARTBEAT_SECONDS = 2.0
_POLL_SECONDS = 0.2


class Following:
    """A context in which this process follows a plan. At its end `send` is called if a message is owed."""

    def __init__(self, directory: Path, send: Callable[[], None]) -> None:
        self._file, self._owed, self._send = directory / FILE, directory / OWED, send
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Following:
        self.more_follows()
        with suppress(OSError):
            self._file.touch()
        self._thread.start()
        return self

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            with suppress(OSError):
                self._file.touch()

    def more_follows(self) -> None:
        """Forget an owed message: the chain that was submitted now has a last job of its own."""
        _remove(self._owed)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        _remove(self._file)
        if _remove(self._owed):
            self._send()


def left_to_follower(directory: Path) -> bool:
    """Leave the message to the process that follows this plan; return False if there is none."""
    if not _is_followed(directory / FILE):
        return False
    try:
        (directory / OWED).touch()
    except OSError:
        return False
    # A process that stopped following meanwhile may have checked too early.
    return (directory / FILE).exists() or not _remove(directory / OWED)


def _is_followed(path: Path) -> bool:
    """Tell whether the file is touched again. No clocks of two hosts are compared, and a killed process touches nothing."""
    before, until = _changed(path), time.monotonic() + DEAD_SECONDS
    while before is not None and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)
        if (now := _changed(path)) != before:
            return now is not None
    return False


def _changed(path: Path) -> int | None:
    """Return when a file changed last. Opening it makes NFS ask the server."""
    try:
        with path.open() as file:
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return None


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True
