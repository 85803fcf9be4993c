"""Worker processes of environments: each steps a share of them, and answers messages through a pipe."""

from __future__ import annotations

import atexit
import os
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context, resource_tracker
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
# Slurm may send them to all processes of a step, but only the training answers them.
_FOR_THE_TRAINING = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)


def number_of(workers: str, count: int) -> int:
    """Return how many processes there are for `count` environments: at most one for each core, or one for each environment.

    The cores are those that this process may use, and of them no more than Slurm gave its task: without a plugin that binds tasks, a
    process may use the whole node.
    """
    if workers == "environments":
        return count
    allowed = len(os.sched_getaffinity(0))
    return min(count, allowed, int(os.environ.get("SLURM_CPUS_PER_TASK") or allowed))


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
        atexit.register(self.close)  # before Python's own exit, which sends them TERM and waits
        try:
            if workers == WORKERS[1]:
                _allow_files(_FILES * number + _OTHER_FILES)
                context.set_forkserver_preload([*_NEEDED, _module_of(make_environment)])
            for share in self.shares:
                ours, theirs = context.Pipe()
                given = work, make_environment, share, theirs, ours, *more
                process = context.Process(target=_begin, args=given, daemon=True)
                with _signals_held():
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
        atexit.unregister(self.close)


@contextmanager
def _signals_held() -> Iterator[None]:
    """Hold the signals of the training back from processes that start here, from their first moment on: they inherit it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_TRAINING)
    try:
        resource_tracker.ensure_running()  # some versions of Python let TERM through again when they start it
        signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_TRAINING)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(work: Callable[..., None], *given: Any) -> None:
    """Work, and do nothing at the signals of the training.

    They are not ignored or still held back, because a simulator that an environment starts would inherit that, and TERM would not end it.
    """
    for number in _FOR_THE_TRAINING:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FOR_THE_TRAINING)
    work(*given)


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
