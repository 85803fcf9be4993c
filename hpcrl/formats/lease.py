"""The lease on a plan or dataset: at most one process changes it, over all hosts that share its file system.

    PLAN/lease/000017     the lease, seventeenth in turn: who holds it, or that it was given back

A lease is taken by creating the next number exclusively, which is atomic on NFS and Lustre. Its holder touches the
file every few seconds. A waiting process judges by its own monotonic clock whether that file still changes, so the
hosts' wall clocks do not matter; a holder on this host is also looked up among the processes.
"""

from __future__ import annotations

import errno
import getpass
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.files import create_exclusively, open_of_stranger
from hpcrl.formats.processes import lives, this_process

FOLDER = "lease"
HEARTBEAT_SECONDS = 5.0
# After so many seconds without a renewal the holder counts as dead. NFS may show a change only after a minute.
DEAD_SECONDS = 90.0
_POLL_SECONDS = 0.5
_RETURNED = "returned"

Say = Callable[[str], None]


class Lease:
    """A lease that this process holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            with suppress(OSError):
                os.utime(self.path)

    def check(self) -> None:
        """Make sure that nobody has taken over the lease (:func:`check_lease`)."""
        check_lease(self.path)

    def give_back(self) -> None:
        self._stop.set()
        self._thread.join()
        with suppress(HpcrlError, OSError):
            if _newest(self.path.parent) == self.path.name:
                self.path.write_text(_RETURNED)


def check_lease(path: Path) -> None:
    """Make sure that nobody has taken over a lease, for example while its holder was suspended. It lists one small directory.

    Raises:
        HpcrlError: somebody has.
    """
    if _newest(path.parent) != path.name:
        raise HpcrlError(
            f"{path.parent.parent}: another hpcrl took it over while this one did not answer: run the command again"
        )


@contextmanager
def held_lease(directory: Path, verb: str, say: Say) -> Iterator[Lease]:
    """Hold the lease on a plan, after its present holder. `say` gets a line that names the process for which this one waits.

    Raises:
        UsageError: the plan directory cannot be written.
    """
    folder = directory / FOLDER
    try:
        folder.mkdir(exist_ok=True)
        path = _acquire(folder, verb, say)
    except OSError as error:
        advice = "copy the plan, or ask for write permission for your group (docs/submission.md)"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = "free some space, and run the command again"
        raise UsageError(
            f"{directory}: {_owner(directory)}cannot be written by you ({folder}: {error.strerror}): {advice}"
        ) from None
    lease = Lease(path)
    try:
        yield lease
    finally:
        lease.give_back()


def _acquire(folder: Path, verb: str, say: Say) -> Path:
    content = json.dumps(
        {
            "verb": verb,
            "user": _user(),
            **this_process(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        }
    )
    told = ""
    while True:
        newest = _newest(folder)
        if newest is not None:
            holder = _wait_for(folder / newest, say, told)
            if holder is not None:
                told = holder
                continue
        path = folder / f"{int(newest or 0) + 1:06d}"
        if create_exclusively(path, content) and _newest(folder) == path.name:
            _remove_before(path)
            return path
        # Another process was faster.
        _remove_unless_newest(path, content)


def _remove_before(path: Path) -> None:
    for file in path.parent.iterdir():
        if file.name.isdecimal() and int(file.name) < int(path.name):
            with suppress(OSError):
                file.unlink()


def _remove_unless_newest(path: Path, content: str) -> None:
    """Remove a lease of this process that came too late: its number had been used and removed meanwhile."""
    seen = _look(path)
    if seen and seen[1] == content and _newest(path.parent) != path.name:
        path.unlink(missing_ok=True)


def _wait_for(path: Path, say: Say, told: str) -> str | None:
    """Wait until a lease was given back or its holder is dead: then None. Else, after a change, say who holds it."""
    before = _look(path)
    since = time.monotonic()
    while True:
        if before is None or before[1] == _RETURNED or _is_dead_here(before[1]):
            return None
        who = _describe(before[1])
        if who != told:
            say(f"waiting for {who}")
            told = who
        if time.monotonic() - since > DEAD_SECONDS:
            say(f"{who}: no sign of life for {DEAD_SECONDS:.0f} s; taking over")
            return None
        time.sleep(_POLL_SECONDS)
        if _newest(path.parent) != path.name:
            return told
        now = _look(path)
        if now != before:
            before, since = now, time.monotonic()


def _look(path: Path) -> tuple[int, str] | None:
    """Return the time of a lease's last change and its content, None for one that is missing. Opening it makes NFS ask the server."""
    try:
        with open_of_stranger(path, "rb") as file:
            return os.fstat(file.fileno()).st_mtime_ns, file.read(10_000).decode(errors="replace")
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENXIO):
            return None
        raise


def _newest(folder: Path) -> str | None:
    return max((file.name for file in folder.iterdir() if file.name.isdecimal()), key=int, default=None)


def _is_dead_here(content: str) -> bool:
    """Tell whether the holder was a process of this host, since its last start, that has ended."""
    try:
        holder = json.loads(content)
    except ValueError:
        return False
    return isinstance(holder, dict) and lives(holder) is False


def _describe(content: str) -> str:
    try:
        holder = json.loads(content)
        return f"`hpcrl {holder['verb']}` of {holder['user']} on {holder['host']} (process {holder['pid']}, since {holder['since']})"
    except (ValueError, KeyError, TypeError):
        return "another hpcrl"


def _owner(directory: Path) -> str:
    uid = directory.stat().st_uid
    if uid == os.getuid():
        return ""
    with suppress(KeyError):
        return f"is a plan of {directory.owner()} and "
    return f"is a plan of user {uid} and "


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
