"""Sending and receiving over MPI, without a wait that keeps a core busy: actors may share the cores."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from hpcrl.rl.interfaces import Space
from hpcrl.rl.topologies.wire import Block, WeightsMessage, heads, row_bytes
from hpcrl.telemetry.phases import BEFORE_TRAINING, PhaseClock

# A wait first gives way this often, then it sleeps between looks: for this share of the time that it has waited, so that many who
# wait cost the cores almost nothing, and no wait becomes much longer.
_YIELDS = 20
_NAP_SHARE, _SHORTEST_NAP, _LONGEST_NAP = 0.02, 5e-5, 2e-4
# How long the learner waits for an actor after a signal. When a rank has died, mpirun sends TERM to the learner, and KILL a few
# seconds later (hpcrl.run.ranks): until then it must have given up and written its checkpoint.
GRACE_SECONDS = 1.0
_TAG_WEIGHTS, _TAG_BLOCK = 1, 2
LEARNER = 0


class RankGone(Exception):
    """A signal has come, and an actor has not answered since. It may be dead, or only slow."""


class Patience:
    """Waits for messages.

    Only the learner has a `grace`, because it has a checkpoint to write. An actor cannot tell a learner that is dead from one that takes
    updates or evaluates, and it has nothing to save. So it waits until the learner answers or the launcher ends it.

    Args:
        stop: tells whether a signal has come.
        grace: seconds that a wait still lasts after that.
        clock: counts waits as the phase `wait`; without it, and before the training, they belong to the present phase.
    """

    def __init__(
        self, stop: Callable[[], bool] = lambda: False, grace: float = math.inf, clock: PhaseClock | None = None
    ) -> None:
        self.stop, self.grace = stop, grace
        self._clock = clock

    def __call__(self, done: Callable[[], bool]) -> None:
        """Wait until `done` says yes.

        Raises:
            RankGone: a signal came, and `done` still says no after the grace.
        """
        clock = self._clock
        with clock.aside("wait") if clock and clock.phase not in BEFORE_TRAINING else nullcontext():
            self._wait(done)

    def _wait(self, done: Callable[[], bool]) -> None:
        for _ in range(_YIELDS):
            if done():
                return
            os.sched_yield()
        begun, end = time.monotonic(), math.inf
        while not done():
            now = time.monotonic()
            if now > end:
                raise RankGone
            if end == math.inf and self.stop():
                end = now + self.grace
            time.sleep(min(max(_SHORTEST_NAP, _NAP_SHARE * (now - begun)), _LONGEST_NAP))


class PostedLearner:
    """The learner's end of messages between two ranks each. A receive for every actor is always posted."""

    def __init__(self, wait: Patience, world: Any, size: int, blocks: list[Block]) -> None:
        self._wait = wait
        self._world, self._blocks = world, blocks
        self._receives = [self._post(actor) for actor in range(len(blocks))]
        self._messages = [WeightsMessage(size) for _ in blocks]
        self._sends: list[Any] = [None] * len(blocks)

    def _post(self, actor: int) -> Any:
        return self._world.Irecv(self._blocks[actor].buffer, source=actor + 1, tag=_TAG_BLOCK)

    def arrived(self) -> Iterator[Block]:
        """Give each block that has arrived. It may be used until the next is asked for."""
        for actor, request in enumerate(self._receives):
            if request.Test():
                try:
                    yield self._blocks[actor]
                finally:
                    self._receives[actor] = self._post(actor)

    def is_free(self, actor: int) -> bool:
        """Tell whether the last message to an actor has left its buffer."""
        return self._sends[actor] is None or bool(self._sends[actor].Test())

    def send(self, actor: int, content: WeightsMessage) -> None:
        """Send a message to an actor; wait until the one before has left."""
        self._wait(partial(self.is_free, actor))
        self._messages[actor].buffer[:] = content.buffer
        self._sends[actor] = self._world.Isend(self._messages[actor].buffer, dest=actor + 1, tag=_TAG_WEIGHTS)

    def close(self) -> None:
        """Wait until everything has been sent, and withdraw the receives."""
        for actor, request in enumerate(self._receives):
            self._wait(partial(self.is_free, actor))
            request.Cancel()
            request.Wait()


class DirectActor:
    """An actor's end of messages between it and the learner. The newest weights win.

    Of three buffers one receives, one has the newest weights that have come, and the actor acts with the third.
    """

    def __init__(self, wait: Patience, world: Any, size: int, blocks: tuple[Block, Block]) -> None:
        self._wait, self._world = wait, world
        self._arriving, self._newest, self._taken = (WeightsMessage(size) for _ in range(3))
        self._receive: Any = self._post()
        self._blocks, self._sends = blocks, [None, None]
        self._has_new = False
        self._turn = 0

    def _post(self) -> Any:
        return self._world.Irecv(self._arriving.buffer, source=LEARNER, tag=_TAG_WEIGHTS)

    def poll(self) -> WeightsMessage | None:
        """Return the newest message, if one has come since :meth:`take`."""
        while self._receive is not None and self._receive.Test():
            self._arriving, self._newest = self._newest, self._arriving
            self._has_new = True
            self._receive = None if self._newest["end"] else self._post()
        return self._newest if self._has_new else None

    def take(self) -> WeightsMessage:
        """Wait for the next message, or take the newest that has come. It is the caller's until the next is taken."""
        self._wait(lambda: self.poll() is not None)
        self._has_new = False
        self._newest, self._taken = self._taken, self._newest
        return self._taken

    def free_block(self) -> Block:
        """Return the block whose content has left, empty."""
        request: Any = self._sends[self._turn]
        if request is not None:
            self._wait(request.Test)
        block = self._blocks[self._turn]
        block.say(count=0)
        return block

    def send(self, block: Block) -> None:
        self._sends[self._turn] = self._world.Isend(block.used(), dest=LEARNER, tag=_TAG_BLOCK)
        self._turn = 1 - self._turn

    def close(self) -> None:
        """Wait until everything has been sent."""
        for request in self._sends:
            if request is not None:
                self._wait(request.Test)


class PairLearner:
    """The learner's end of messages between it and one actor, in turns."""

    def __init__(self, wait: Patience, world: Any, block: Block) -> None:
        self._wait = wait
        self._world, self._block = world, block

    def gather(self) -> list[Block]:
        """Return the actor's block."""
        self._wait(self._world.Irecv(self._block.buffer, source=LEARNER + 1, tag=_TAG_BLOCK).Test)
        return [self._block]

    def publish(self, message: WeightsMessage) -> None:
        """Send a message to the actor, which waits for it, and return when it has left.

        Large ones leave only within calls of MPI, and the next one comes after the updates that the actor should not wait for.
        """
        self._wait(self._world.Isend(message.buffer, dest=LEARNER + 1, tag=_TAG_WEIGHTS).Test)


class StarLearner:
    """The learner's end of gather and broadcast: all ranks call the same, in the same order."""

    def __init__(self, wait: Patience, world: Any, size: int, blocks: list[Block], space: Space) -> None:
        self._wait = wait
        self._world, self._blocks, self._row = world, blocks, row_bytes(space)
        self._heads, self._numbers = heads(len(blocks) + 1)
        self._nothing = np.zeros(0, np.uint8)
        self._own = heads(1)[0]

    def gather(self) -> list[Block]:
        """Return the block of every actor."""
        request = self._world.Igather(self._own, self._heads, root=LEARNER)
        self._wait(request.Test)
        counts = [int(count) * self._row for count in self._numbers["count"]]
        content = np.empty(sum(counts), np.uint8)
        places = np.cumsum([0, *counts[:-1]]).tolist()
        request = self._world.Igatherv(self._nothing, [content, counts, places, _byte()], root=LEARNER)
        self._wait(request.Test)
        size = self._own.nbytes
        for actor, block in enumerate(self._blocks):
            block.head[:] = self._heads[(actor + 1) * size : (actor + 2) * size]
            block.content()[:] = content[places[actor + 1] :][: counts[actor + 1]]
        return self._blocks

    def publish(self, message: WeightsMessage) -> None:
        """Send a message to every actor."""
        self._wait(self._world.Ibcast(message.buffer, root=LEARNER).Test)


class StarActor:
    """An actor's end of gather and broadcast."""

    def __init__(self, wait: Patience, world: Any, size: int, block: Block) -> None:
        self._wait = wait
        self._world, self._block, self._message = world, block, WeightsMessage(size)

    def poll(self) -> WeightsMessage | None:
        """Return nothing: a message comes to all actors at once, when all have sent their blocks."""
        return None

    def take(self) -> WeightsMessage:
        """Wait for the next message. It is the caller's until the next is taken."""
        self._wait(self._world.Ibcast(self._message.buffer, root=LEARNER).Test)
        return self._message

    def free_block(self) -> Block:
        self._block.say(count=0)
        return self._block

    def send(self, block: Block) -> None:
        """Wait until the learner has the block."""
        self._wait(self._world.Igather(block.head, None, root=LEARNER).Test)
        self._wait(self._world.Igatherv(block.content(), None, root=LEARNER).Test)

    def close(self) -> None:
        """Do nothing: nothing is on its way."""


def _byte() -> Any:
    from mpi4py import MPI

    return MPI.BYTE
