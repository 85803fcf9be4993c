"""Environments in worker processes that send observations through pipes: what shared memory spares :mod:`hpcrl.rl.vector.processes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.rl.envs.closing import close_all
from hpcrl.rl.interfaces import Actions, Transitions
from hpcrl.rl.vector.sync import SyncEnvironments
from hpcrl.rl.vector.workers import Workers, serve


class PipeEnvironments:
    """`count` environments in as many processes as `workers` says. The factory must be one that pickle knows.

    Raises:
        HpcrlError: a worker died, or no more could start.
    """

    def __init__(self, make_environment: Callable[[], Any], count: int, workers: str) -> None:
        self.count = count
        self._workers = Workers("pipes", workers, _work, make_environment, count)

    def reset(self, seeds: Sequence[int]) -> NDArray[np.float32]:
        return np.concatenate(self._workers.ask([list(seeds[share]) for share in self._workers.shares]))

    def step(self, actions: Actions) -> Transitions:
        parts = self._workers.ask([actions[share] for share in self._workers.shares])
        return Transitions(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    def close(self) -> None:
        self._workers.close()


def _work(make_environment: Callable[[], Any], share: slice, connection: Connection, other: Connection) -> None:
    """Step a share of the environments: a message is a list of seeds, or actions."""
    made = [make_environment() for _ in range(share.stop - share.start)]
    environments = SyncEnvironments(made)

    def answer(message: list[int] | Actions) -> Any:
        return environments.reset(message) if isinstance(message, list) else environments.step(message)

    try:
        serve(connection, other, answer)
    finally:
        close_all(made)


def make(make_environment: Callable[[], Any], count: int, workers: str) -> PipeEnvironments:
    """Return `count` environments."""
    return PipeEnvironments(make_environment, count, workers)
