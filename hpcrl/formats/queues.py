"""The local queues of a plan: which process runs which submissions, and whether it still lives.

    PLAN/queues/<token of its first submission>     who it is and what it has and runs, touched every few seconds
    PLAN/queues                                     locked while a queue takes cores

A queue on this host is looked up among the processes; one on another host lives while its file is touched.
What a queue started may outlive it: its cores are free for the next queue only when it has ended too.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from hpcrl.formats.files import is_plain_name, open_of_stranger, server_time, write_atomically
from hpcrl.formats.lease import DEAD_SECONDS, HEARTBEAT_SECONDS
from hpcrl.formats.processes import lives, this_process

FOLDER = "queues"
QUEUE_LOGS = "submitit"  # below the plan: submitit's own files, the logs of queues among them
_TAIL = 4096  # bytes of a log that are looked into
_MAX_QUEUE = 64 * 1024**2  # bytes of a queue's file


@dataclass(frozen=True)
class Held:
    """What the tasks of other queues hold of this machine: cores, GPUs as CUDA names them, and how many tasks."""

    cores: set[int] = field(default_factory=set)
    gpus: set[str] = field(default_factory=set)
    tasks: int = 0


class Queue:
    """The queue that this process is."""

    def __init__(self, directory: Path, tokens: Sequence[str], log: str = "") -> None:
        """Write down who this process is.

        Args:
            log: the name of the file where its errors go.
        """
        self._folder = directory / FOLDER
        self._path = self._folder / tokens[0]
        self._me = this_process()
        self._facts: dict[str, Any] = {"tokens": list(tokens), "log": log, **self._me}
        self._beaten = time.monotonic()
        self._write([])

    def _write(self, running: list[dict[str, Any]]) -> None:
        write_atomically(self._path, json.dumps({**self._facts, "running": running}))

    @contextmanager
    def turn(self) -> Iterator[Held | None]:
        """Lock the plan's queues on this machine, and give what their tasks hold. No other queue takes more meanwhile.

        None if another queue has the lock.
        """
        handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield self._held_by_others() if _lock(handle) else None
        finally:
            os.close(handle)

    def _held_by_others(self) -> Held:
        others = [queue for path, queue in _files(self._folder) if path != self._path]
        return _held([task for queue in others for task in _tasks(queue)])

    def runs(self, tasks: Sequence[tuple[int, Sequence[int], Sequence[str]]]) -> None:
        """Write down the process of each task that runs, with its cores and GPUs."""
        running = []
        for pid, cores, gpus in tasks:
            with suppress(psutil.Error):
                started = psutil.Process(pid).create_time()
                task = {"pid": pid, "process_started": started, "cores": list(cores), "gpus": list(gpus)}
                running.append({**self._me, **task})
        with suppress(OSError):
            self._write(running)

    def beat(self) -> None:
        """Show that this process lives; call it often."""
        if time.monotonic() - self._beaten > HEARTBEAT_SECONDS:
            self._beaten = time.monotonic()
            with suppress(OSError):
                os.utime(self._path)


def _lock(handle: int) -> bool:
    """Lock a directory; return False if another process has it. On file systems without locks (some NFS) it always succeeds."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def read_queues(directory: Path) -> dict[str, bool]:
    """Return, for each token that a local queue took up, whether that queue lives."""
    by_token: dict[str, bool] = {}
    for path, queue in _files(directory / FOLDER):
        try:
            alive = lives(queue)
            if alive is None:
                alive = server_time(directory) - path.stat().st_mtime < DEAD_SECONDS
            for token in queue["tokens"]:
                by_token[token] = alive or by_token.get(token, False)
        except (OSError, KeyError, TypeError):
            continue
    return by_token


def stopped_queues(directory: Path) -> list[int]:
    """Return the process ids of queues on this host that are suspended (SIGSTOP): nothing of theirs starts or ends."""
    pids = []
    for _, queue in _files(directory / FOLDER):
        with suppress(psutil.Error):
            if lives(queue) and psutil.Process(int(queue["pid"])).status() == psutil.STATUS_STOPPED:
                pids.append(int(queue["pid"]))
    return pids


def last_words(directory: Path, token: str) -> str | None:
    """Return the last line that the queue of a submission wrote to its log."""
    for _, queue in _files(directory / FOLDER):
        log, tokens = queue.get("log"), queue.get("tokens")
        if not isinstance(tokens, list) or token not in tokens or not isinstance(log, str) or not is_plain_name(log):
            continue
        with suppress(OSError), open_of_stranger(directory / QUEUE_LOGS / log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            lines = file.read(_TAIL).decode(errors="replace").strip().splitlines()
            return lines[-1].strip() if lines else None
    return None


def orphans(directory: Path) -> int:
    """Count the tasks on this machine that run on although their queue has ended."""
    dead = [queue for _, queue in _files(directory / FOLDER) if lives(queue) is False]
    return _held([task for queue in dead for task in _tasks(queue)]).tasks


def _held(tasks: Sequence[dict[str, Any]]) -> Held:
    """Add up what the tasks hold that still run on this machine."""
    living = [task for task in tasks if lives(task)]
    return Held(
        {core for task in living for core in task["cores"]},
        {gpu for task in living for gpu in task["gpus"]},
        len(living),
    )


def _files(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in sorted(folder.glob("hpcrl-*")):
        try:
            with open_of_stranger(path, most=_MAX_QUEUE) as file:
                queue = json.load(file)
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(queue, dict):
            yield path, queue


def _tasks(queue: dict[str, Any]) -> list[dict[str, Any]]:
    tasks = queue.get("running")
    if not isinstance(tasks, list):
        return []
    return [
        task
        for task in tasks
        if isinstance(task, dict) and isinstance(task.get("cores"), list) and isinstance(task.get("gpus"), list)
    ]
