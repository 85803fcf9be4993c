"""The local queues of a plan: which process runs which submissions, and whether it still lives.

    PLAN/queues/<token of its first submission>     who it is and what it has and runs, touched every few seconds
    PLAN/queues/turn                                locked while a queue takes cores

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

from hpcrl.formats.files import open_of_stranger, server_time, write_atomically
from hpcrl.formats.lease import DEAD_SECONDS, HEARTBEAT_SECONDS
from hpcrl.formats.processes import lives, this_process

FOLDER = "queues"
_MAX_QUEUE = 64 * 1024**2  # bytes of a queue's file


@dataclass(frozen=True)
class Held:
    """What the tasks of other queues hold of this machine: cores, GPUs as CUDA names them, and how many tasks."""

    cores: set[int] = field(default_factory=set)
    gpus: set[str] = field(default_factory=set)
    tasks: int = 0


class Queue:
    """The queue that this process is."""

    def __init__(self, directory: Path, tokens: Sequence[str]) -> None:
        self._folder = directory / FOLDER
        self._path = self._folder / tokens[0]
        self._me = this_process()
        self._facts: dict[str, Any] = {"tokens": list(tokens), **self._me}
        self._beaten = time.monotonic()
        self._write([])

    def _write(self, running: list[dict[str, Any]]) -> None:
        write_atomically(self._path, json.dumps({**self._facts, "running": running}))

    @contextmanager
    def turn(self) -> Iterator[Held | None]:
        """Take turns with the plan's other queues on this machine; give what their tasks hold, while nobody takes more.

        None where it is another one's turn.
        """
        # Read-only, since another user may have made it; whatever stands there must not make a queue wait.
        held: Held | None = None
        flags = os.O_RDONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(self._folder / "turn", flags, 0o666)
        try:
            with suppress(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = self._held_by_others()
            yield held
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


def read_queues(directory: Path) -> dict[str, bool]:
    """Return, for each token that a local queue took up, whether that queue lives."""
    found: dict[str, bool] = {}
    for path, queue in _files(directory / FOLDER):
        try:
            alive = lives(queue)
            if alive is None:
                alive = server_time(directory) - path.stat().st_mtime < DEAD_SECONDS
            for token in queue["tokens"]:
                found[token] = alive or found.get(token, False)
        except (OSError, KeyError, TypeError):
            continue
    return found


def orphans(directory: Path) -> int:
    """Count the tasks on this machine that run on although their queue has ended."""
    dead = [queue for _, queue in _files(directory / FOLDER) if lives(queue) is False]
    return _held([task for queue in dead for task in _tasks(queue)]).tasks


def _held(tasks: Sequence[dict[str, Any]]) -> Held:
    """Add up what those of some tasks hold that live on this machine."""
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
