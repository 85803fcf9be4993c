"""Environments in worker processes: pays where a step of the environment costs more than passing a message.

Each worker steps its share of the environments, one after another. Observations and actions are exchanged in shared
memory; a pipe tells when.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import RawArray
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.catalogue.actions import kind_of_actions
from hpcrl.errors import HpcrlError
from hpcrl.rl.interfaces import Actions, Transitions
from hpcrl.rl.vector.sync import SyncEnvironments

# A fork would inherit the threads of a framework, which may then wait for each other for ever.
_CONTEXT = get_context("spawn")


class ProcessEnvironments:
    """`count` environments in as many processes as there are cores for them. The factory must be one that pickle knows.

    An action is a whole number, or with `numbers` a vector of so many real ones.

    Raises:
        HpcrlError: a worker died.
    """

    def __init__(self, make_environment: Callable[[], Any], count: int, inputs: int, numbers: int = 0) -> None:
        self.count = count
        self._memory = _Memory(count, inputs, numbers)
        self._workers = []
        shares = np.array_split(np.arange(count), min(count, len(os.sched_getaffinity(0))))
        for share in shares:
            ours, theirs = _CONTEXT.Pipe()
            arguments = (make_environment, self._memory, slice(share[0], share[-1] + 1), theirs, ours)
            process = _CONTEXT.Process(target=_work, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._workers.append((process, ours, share))

    def reset(self, seeds: Sequence[int]) -> NDArray[np.float32]:
        self._ask([[seeds[index] for index in share] for _, _, share in self._workers])
        return self._memory.observations.copy()

    def step(self, actions: Actions) -> Transitions:
        memory = self._memory
        memory.actions[:] = actions
        self._ask([None] * len(self._workers))
        parts = (memory.observations, memory.rewards, memory.terminated, memory.ended, memory.last)
        return Transitions(*[part.copy() for part in parts])

    def _ask(self, messages: Sequence[list[int] | None]) -> None:
        try:
            for (_, connection, _), message in zip(self._workers, messages, strict=True):
                connection.send(message)
            answers = [connection.recv() for _, connection, _ in self._workers]
        except (EOFError, OSError):
            raise HpcrlError("stepping processes: a process of the environments ended") from None
        if failures := [answer for answer in answers if answer]:
            raise HpcrlError(f"stepping processes: the environment failed: {failures[0]}")

    def close(self) -> None:
        for process, connection, _ in self._workers:
            connection.close()
            process.join(5)
            if process.is_alive():
                process.kill()


class _Memory:
    """Arrays in memory that the processes share."""

    def __init__(self, count: int, inputs: int, numbers: int) -> None:
        self._shape, self._numbers = (count, inputs), numbers
        sizes = (count * inputs * 4, count * inputs * 4, 4 * count, count, count, count * (4 * numbers or 8))
        self._blocks = [RawArray("b", size) for size in sizes]
        self._view()

    def _view(self) -> None:
        kinds = (np.float32, np.float32, np.float32, np.bool_, np.bool_, np.float32 if self._numbers else np.int64)
        views: list[NDArray[Any]] = [
            np.frombuffer(block, kind) for block, kind in zip(self._blocks, kinds, strict=True)
        ]
        self.observations, self.last = (view.reshape(self._shape) for view in views[:2])
        self.rewards, self.terminated, self.ended, actions = views[2:]
        self.actions = actions.reshape(-1, self._numbers) if self._numbers else actions

    def __getstate__(self) -> dict[str, Any]:
        return {"_shape": self._shape, "_numbers": self._numbers, "_blocks": self._blocks}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._view()


def _work(
    make_environment: Callable[[], Any], memory: _Memory, share: slice, connection: Connection, other: Connection
) -> None:
    """Step a share of the environments until the other end of the connection closes."""
    other.close()
    environments = SyncEnvironments([make_environment() for _ in range(share.stop - share.start)])
    while True:
        try:
            seeds = connection.recv()
        except EOFError:
            return
        try:
            if seeds is not None:
                memory.observations[share] = environments.reset(seeds)
            else:
                found = environments.step(memory.actions[share])
                memory.observations[share], memory.rewards[share] = found.observations, found.rewards
                memory.terminated[share], memory.ended[share] = found.terminated, found.ended
                memory.last[share] = found.last
        except Exception as error:  # the other end says it
            connection.send(f"{type(error).__name__}: {error}")
            return
        connection.send("")


def make(make_environment: Callable[[], Any], count: int) -> ProcessEnvironments:
    """Return `count` environments."""
    environment = make_environment()
    space = environment.action_space
    numbers = space.shape[0] if kind_of_actions(space) == "continuous" else 0
    return ProcessEnvironments(make_environment, count, math.prod(environment.observation_space.shape), numbers)
