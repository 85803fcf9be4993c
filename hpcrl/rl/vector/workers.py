"""Worker processes of environments: each steps a share of them, and answers messages through a pipe."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from hpcrl.errors import HpcrlError

# A fork would inherit the threads of a framework, which may then wait for each other for ever.
_CONTEXT = get_context("spawn")


class Workers:
    """As many processes as there are cores for `count` environments. `stepping` is the name for messages.

    Each runs `work`(make_environment, share, connection, the other end of it, *more), which ends in :func:`serve`. All of that must be
    what pickle knows.
    """

    def __init__(
        self, stepping: str, work: Callable[..., None], make_environment: Callable[[], Any], count: int, *more: Any
    ) -> None:
        self._stepping = stepping
        self._processes = []
        self.shares: list[slice] = []
        for places in np.array_split(np.arange(count), min(count, len(os.sched_getaffinity(0)))):
            share = slice(int(places[0]), int(places[-1]) + 1)
            ours, theirs = _CONTEXT.Pipe()
            process = _CONTEXT.Process(target=work, args=(make_environment, share, theirs, ours, *more), daemon=True)
            process.start()
            theirs.close()
            self._processes.append((process, ours))
            self.shares.append(share)

    def ask(self, messages: Sequence[Any]) -> list[Any]:
        """Send each worker its message, and return their answers.

        Raises:
            HpcrlError: a worker died, or its environment failed.
        """
        try:
            for (_, connection), message in zip(self._processes, messages, strict=True):
                connection.send(message)
            answers = [connection.recv() for _, connection in self._processes]
        except (EOFError, OSError):
            raise HpcrlError(f"stepping {self._stepping}: a process of the environments ended") from None
        if failures := [failure for failure, _ in answers if failure]:
            raise HpcrlError(f"stepping {self._stepping}: the environment failed: {failures[0]}")
        return [answer for _, answer in answers]

    def close(self) -> None:
        """End the processes."""
        for process, connection in self._processes:
            connection.close()
            process.join(5)
            if process.is_alive():
                process.kill()


def serve(connection: Connection, other: Connection, answer: Callable[[Any], Any]) -> None:
    """Answer messages until the other end of the connection closes, or the environment fails."""
    other.close()
    while True:
        try:
            message = connection.recv()
        except EOFError:
            return
        failure, answered = "", None
        try:
            answered = answer(message)
        except Exception as error:  # the other end says it
            failure = f"{type(error).__name__}: {error}"
        connection.send((failure, answered))
        if failure:
            return
