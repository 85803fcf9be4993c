"""Environments in worker processes: pays where a step of the environment costs more than passing a message.

Each worker steps its share of the environments, one after another. Observations and actions are exchanged in shared
memory; a pipe tells when.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import RawArray
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.catalogue.actions import kind_of_actions
from hpcrl.rl.envs.closing import close_all
from hpcrl.rl.interfaces import Actions, Transitions
from hpcrl.rl.vector.sync import SyncEnvironments
from hpcrl.rl.vector.workers import Workers, serve


class ProcessEnvironments:
    """`count` environments in as many processes as `workers` says. The factory must be one that pickle knows.

    An action is a whole number, or with `numbers` a vector of so many real ones.

    Raises:
        HpcrlError: a worker died, or no more could start.
    """

    def __init__(
        self, make_environment: Callable[[], Any], count: int, workers: str, inputs: int, numbers: int = 0
    ) -> None:
        self.count = count
        self._memory = _Memory(count, inputs, numbers)
        self._workers = Workers("processes", workers, _work, make_environment, count, self._memory)

    def reset(self, seeds: Sequence[int]) -> NDArray[np.float32]:
        self._workers.ask([list(seeds[share]) for share in self._workers.shares])
        return self._memory.observations.copy()

    def step(self, actions: Actions) -> Transitions:
        memory = self._memory
        memory.actions[:] = actions
        self._workers.ask([None] * len(self._workers.shares))
        parts = (memory.observations, memory.rewards, memory.terminated, memory.ended, memory.last)
        return Transitions(*[part.copy() for part in parts])

    def close(self) -> None:
        self._workers.close()


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
    make_environment: Callable[[], Any], share: slice, connection: Connection, other: Connection, memory: _Memory
) -> None:
    """Step a share of the environments: a message is a list of seeds, or nothing for a step."""
    made = [make_environment() for _ in range(share.stop - share.start)]
    environments = SyncEnvironments(made)

    def answer(seeds: list[int] | None) -> None:
        if seeds is not None:
            memory.observations[share] = environments.reset(seeds)
            return
        transitions = environments.step(memory.actions[share])
        memory.observations[share], memory.rewards[share] = transitions.observations, transitions.rewards
        memory.terminated[share], memory.ended[share] = transitions.terminated, transitions.ended
        memory.last[share] = transitions.last

    try:
        serve(connection, other, answer)
    finally:
        close_all(made)


def make(make_environment: Callable[[], Any], count: int, workers: str) -> ProcessEnvironments:
    """Return `count` environments."""
    environment = make_environment()
    space = environment.action_space
    numbers = space.shape[0] if kind_of_actions(space) == "continuous" else 0
    inputs = math.prod(environment.observation_space.shape)
    close_all([environment])
    return ProcessEnvironments(make_environment, count, workers, inputs, numbers)
