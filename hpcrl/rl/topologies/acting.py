"""An actor: it explores with the weights that the learner sent, and sends what happened. Ranks 1 and up."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from hpcrl.errors import HpcrlError
from hpcrl.rl.interfaces import Algorithm, Weights
from hpcrl.rl.loops.acting import FrameworkActor, NumpyActor
from hpcrl.rl.loops.exploring import Explorer
from hpcrl.rl.runs import Result, Run
from hpcrl.rl.topologies.ports import DirectActor, StarActor
from hpcrl.rl.topologies.wire import ALL, COMPLETED, GOING, PREEMPTED, WeightsMessage
from hpcrl.rl.weights import views


class ActorRank:
    """Actor `number` of `actors`; `like` has the names and shapes of the weights that it is sent."""

    def __init__(
        self,
        ports: DirectActor | StarActor,
        algorithm: Algorithm,
        implementation: Any,
        environment: Any,
        actor: FrameworkActor | NumpyActor,
        like: Weights,
        run: Run,
        number: int,
        actors: int,
    ) -> None:
        self._ports, self._run, self._actors, self._number = ports, run, actors, number
        self._like, self._load = like, actor.load
        self._share = algorithm.settings.train_interval // actors
        self._counts_episodes = algorithm.settings.train_unit == "episodes"
        self._explorer = Explorer(
            algorithm, implementation, environment, actor, run, self._add, lambda *episode: None, number, actors
        )
        self._version = -1
        self._blocks = self._taken = self._granted = self._begun = 0

    def _add(self, *transition: Any) -> None:
        self._block.add(*transition)
        self._taken += 1

    def explore(self, stop: Callable[[], bool]) -> Result:
        """Explore until the learner says that there is no more to do.

        A signal ends exploring, and the next block tells the learner of it, which then ends all ranks. Until the learner answers, the
        actor waits, however long that takes: if the learner has died, the launcher ends the actor.
        """
        end = self._explore(stop)
        return Result(
            "preempted" if end == PREEMPTED else "completed", self._taken, self._explorer.episodes, None, None, None
        )

    def _explore(self, stop: Callable[[], bool]) -> int:
        """Explore, and return why there is no more to do."""
        message, told = self._take(), False
        while not message["end"]:
            if self._done < self._granted and not told:
                self._block = self._ports.free_block()
                self._advance(min(self._share, self._granted - self._done), lambda: stop() or self._is_over())
                told = stop()
                self._send(PREEMPTED if told else GOING)
            if told or self._done >= self._granted or self._ports.poll():
                message = self._take()
        self._block = self._ports.free_block()
        self._send(COMPLETED)
        self._ports.close()
        return message["end"]

    @property
    def _done(self) -> int:
        """Return what is counted against the grants: steps or episodes since the ranks began."""
        return self._explorer.episodes - self._begun if self._counts_episodes else self._taken

    def _advance(self, count: int, stop: Callable[[], bool]) -> None:
        """Explore for this many steps, or episodes."""
        explorer = self._explorer
        if self._counts_episodes:
            explorer.advance(sys.maxsize, stop, explorer.episodes + count)
        else:
            explorer.advance(explorer.step + self._actors * count, stop)

    def _is_over(self) -> bool:
        """Tell whether the learner has said that there is no more to do."""
        message = self._ports.poll()
        return message is not None and message["end"] != GOING

    def _send(self, end: int) -> None:
        switch, block = self._run.clock.switch, self._block
        switch("send")
        block.say(actor=self._number, number=self._blocks, version=self._version, sent=self._taken, end=end)
        self._blocks += 1
        self._ports.send(block)
        switch("other")

    def _take(self) -> WeightsMessage:
        """Wait for a message, and act with its weights from now on."""
        switch = self._run.clock.switch
        # The first message comes when the learner begins to train. Until then nothing is a part of the training here either.
        if self._version >= 0:
            switch("receive")
        message = self._ports.take()
        if message["version"] < self._version:
            raise HpcrlError(
                f"actor {self._number}: the weights' version went back from {self._version} to {message['version']}: "
                "the learner's messages were mixed up"
            )
        if self._version < 0 and message["step"]:  # after a checkpoint: no exploration twice
            self._begun = message["episodes"] // self._actors
            self._explorer.restart(message["step"], self._begun)
        self._version, self._granted = message["version"], message["granted"]
        # Between messages each of its own steps counted for every actor. The others may have been slower: only what the learner has not
        # stored yet is still an estimate.
        unseen = 0 if message["stored"] == ALL else self._taken - message["stored"]
        self._explorer.step = message["step"] + self._actors * unseen
        self._load(views(message.vector, self._like))
        switch("other")
        return message
