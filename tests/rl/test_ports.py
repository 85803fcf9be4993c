"""The ends of messages, with a world that delivers when the test says so."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.rl.interfaces import Space
from hpcrl.rl.topologies.ports import DirectActor, Patience
from hpcrl.rl.topologies.wire import COMPLETED, GOING, Block, WeightsMessage

SIZE = 3


class Request:
    def __init__(self, buffer: NDArray[np.uint8]) -> None:
        self.buffer, self.arrived = buffer, False

    def Test(self) -> bool:  # MPI's name
        return self.arrived


class World:
    """A message waits until a receive is posted for it, as in MPI."""

    def __init__(self) -> None:
        self._posted: deque[Request] = deque()
        self._waiting: deque[WeightsMessage] = deque()

    def Irecv(self, buffer: NDArray[np.uint8], **_: Any) -> Request:  # MPI's name
        self._posted.append(request := Request(buffer))
        self._match()
        return request

    def deliver(self, version: int, end: int = GOING) -> None:
        message = WeightsMessage(SIZE)
        message.say(version=version, end=end)
        message.vector[:] = version
        self._waiting.append(message)
        self._match()

    def _match(self) -> None:
        while self._posted and self._waiting:
            request = self._posted.popleft()
            request.buffer[:] = self._waiting.popleft().buffer
            request.arrived = True


def test_weights_that_an_actor_acts_with_stay_until_it_takes_others() -> None:
    """It acts on views of the message, and up to two newer ones come meanwhile: one that it has seen and one on its way."""
    world, space = World(), Space(4, 2)
    actor = DirectActor(Patience(), world, SIZE, (Block(space, 1), Block(space, 1)))
    world.deliver(0)
    weights = actor.take().vector
    for version in range(1, 30):
        for newer in range(version % 4):  # none to three
            world.deliver(100 * version + newer)
            if newer != 1:  # two in one look
                actor.poll()
        assert set(weights) == {weights[0]}
        before = weights.copy()
        world.deliver(1000 * version)
        assert (weights == before).all()
        weights = actor.take().vector
        assert (weights == 1000 * version).all(), "the newest wins"
    world.deliver(10**6, COMPLETED)
    assert actor.take()["end"] == COMPLETED
