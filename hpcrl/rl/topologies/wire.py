"""The messages between learner and actors: flat buffers, so that nothing is pickled and no size is sent.

Rank 0 is the learner, rank a + 1 is actor a. Numbers are of the machine's byte order: all ranks run on one kind of machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.rl.interfaces import Action, Observations, Space

# Why there is no more to do, as `end` of a message.
GOING, COMPLETED, PREEMPTED = 0, 1, 2
# `stored` of a message whose receivers have nothing on its way to the learner.
ALL = -1

_WEIGHTS = np.dtype([(name, np.int64) for name in ("version", "step", "stored", "episodes", "granted", "end")])
# Of a transition, in the order in which a replay takes them.
FIELDS = ("observation", "action", "reward", "following", "terminated", "ended")
_BLOCK = np.dtype([(name, np.int64) for name in ("actor", "number", "version", "count", "sent", "end")])


class _Message:
    """A buffer of bytes that begins with a header of whole numbers."""

    def __init__(self, header: np.dtype[Any], size: int) -> None:
        self.buffer = np.zeros(header.itemsize + size, np.uint8)
        self._header: Any = self.buffer[: header.itemsize].view(header)[0]
        self._content = self.buffer[header.itemsize :]

    def __getitem__(self, name: str) -> int:
        return int(self._header[name])

    def say(self, **values: int) -> None:
        """Set values of the header."""
        for name, value in values.items():
            self._header[name] = value


class WeightsMessage(_Message):
    """From the learner: `vector`, the float32 weights that actors act with, after `version` intervals of updates.

    `step` and `episodes` count the environment steps and the ended episodes of all actors. `stored` of the steps are the receiver's own
    since the ranks began; `ALL` means every step that it has taken. The receiver may take `granted` steps, or episodes if intervals are
    counted in them, since the ranks began.
    """

    def __init__(self, size: int) -> None:
        super().__init__(_WEIGHTS, 4 * size)
        self.vector: NDArray[np.float32] = self._content.view(np.float32)


class Block(_Message):
    """From an actor: `count` transitions in the order of their steps, taken with the weights `version`.

    `number` counts the blocks of the actor from 0, `sent` its transitions up to and with this block.
    """

    def __init__(self, space: Space, capacity: int) -> None:
        row = _row(space)
        super().__init__(_BLOCK, row.itemsize * capacity)
        self._rows = self._content.view(row)
        # Assigning to views takes half of the time of assigning a row and a value of the header.
        self._count = self.buffer[: _BLOCK.itemsize].view(_BLOCK)["count"]
        self._fields = tuple(self._rows[name] for name in FIELDS)
        self.head = self.buffer[: _BLOCK.itemsize]
        self.capacity = capacity

    def add(
        self,
        observation: Observations,
        action: Action,
        reward: float,
        following: Observations,
        terminated: bool,
        ended: bool,
    ) -> None:
        """Append a transition."""
        count = int(self._count[0])
        observations, actions, rewards, followings, terminations, ends = self._fields
        observations[count], actions[count], rewards[count] = observation, action, reward
        followings[count], terminations[count], ends[count] = following, terminated, ended
        self._count[0] = count + 1

    def used(self) -> NDArray[np.uint8]:
        """Return the part of the buffer that has content."""
        return self.buffer[: _BLOCK.itemsize + self.rows().nbytes]

    def rows(self) -> NDArray[Any]:
        """Return the transitions (count,), with the fields `FIELDS`."""
        return self._rows[: self["count"]]

    def content(self) -> NDArray[np.uint8]:
        """Return the transitions as bytes."""
        return self._content[: self.rows().nbytes]


def heads(count: int) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Return a buffer for the headers of the blocks of `count` ranks, and the headers in it."""
    buffer = np.zeros(count * _BLOCK.itemsize, np.uint8)
    return buffer, buffer.view(_BLOCK)


def row_bytes(space: Space) -> int:
    """Return the bytes of a transition."""
    return _row(space).itemsize


def _row(space: Space) -> np.dtype[Any]:
    # The memory rounds the reward to float32; the learner also sums it.
    observation = (space.dtype, (space.inputs,))
    kinds: tuple[Any, ...] = (observation, np.int64, np.float64, observation, np.bool_, np.bool_)
    return np.dtype(list(zip(FIELDS, kinds, strict=True)))
