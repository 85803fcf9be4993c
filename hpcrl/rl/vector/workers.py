"""Worker processes of environments: each steps a share of them, and answers messages through a pipe."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from typing import Any

import numpy as np

from hpcrl.catalogue.training import WORKERS
from hpcrl.errors import HpcrlError
from hpcrl.rl.envs.closing import close_all

# A process for each environment may be hundreds of them: those are forked from one process that has imported what all of them need,
# and share its memory. A fork of this process would inherit the threads of a framework, which may then wait for each other for ever.
_CONTEXTS: dict[str, SpawnContext | ForkServerContext] = {
    "cores": get_context("spawn"),
    "environments": get_context("forkserver"),
}
_NEEDED = ["hpcrl.rl.vector.processes", "hpcrl.rl.vector.pipes", "hpcrl.rl.envs.make", "gymnasium"]
# Open files that this process keeps for each worker (a pipe, and two ends that tell of each other's death), and room for all others.
_FILES, _OTHER_FILES = 3, 300


def number_of(workers: str, count: int) -> int:
    """Return how many processes there are for `count` environments: at most one for each core, or one for each environment."""
    return count if workers == "environments" else min(count, len(os.sched_getaffinity(0)))


class Workers:
    """The processes of `count` environments, as many as `workers` says. `stepping` is the name for messages.

    Each runs `work`(make_environment, share, connection, the other end of it, *more), which ends in :func:`serve`. All of that must be
    what pickle knows.

    Raises:
        HpcrlError: the machine does not let so many processes start.
    """

    def __init__(
        self,
        stepping: str,
        workers: str,
        work: Callable[..., None],
        make_environment: Callable[[], Any],
        count: int,
        *more: Any,
    ) -> None:
        self._stepping = stepping
        self._processes: list[tuple[Any, Connection]] = []
        context, number = _CONTEXTS[workers], number_of(workers, count)
        self.shares = [
            slice(int(places[0]), int(places[-1]) + 1) for places in np.array_split(np.arange(count), number)
        ]
        try:
            if workers == WORKERS[1]:
                _allow_files(_FILES * number + _OTHER_FILES)
                context.set_forkserver_preload([*_NEEDED, _module_of(make_environment)])
            for share in self.shares:
                ours, theirs = context.Pipe()
                process = context.Process(target=work, args=(make_environment, share, theirs, ours, *more), daemon=True)
                process.start()
                theirs.close()
                self._processes.append((process, ours))
        except (OSError, EOFError) as error:
            started = len(self._processes)
            self.close()
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise HpcrlError(
                f"stepping {stepping}: after {started} of {number} processes no other could start ({reason}): allow more processes and "
                "open files (ulimit -u, ulimit -n), or step fewer environments"
            ) from None

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
        for _, connection in self._processes:
            connection.close()
        for process, _ in self._processes:
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


def _module_of(make_environment: Callable[[], Any]) -> str:
    """Return the name of the module of an environment's class."""
    environment = make_environment()
    name: str = type(getattr(environment, "unwrapped", environment)).__module__
    close_all([environment])
    return name


def _allow_files(wanted: int) -> None:
    """Let this process open so many files, as far as its hard limit goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
