"""An actor of a topology, with messages that a test writes in place of a learner."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from hpcrl.catalogue.algorithms.dqn import Settings
from hpcrl.rl.algorithms import dqn
from hpcrl.rl.interfaces import Space
from hpcrl.rl.runs import Run
from hpcrl.rl.topologies.acting import ActorRank
from hpcrl.rl.topologies.ports import Patience
from hpcrl.rl.topologies.wire import COMPLETED, Block, WeightsMessage
from hpcrl.rl.weights import initial_weights, pack
from hpcrl.telemetry.phases import PhaseClock
from tests.rl.builders import Counter, Reports

SPACE = Space(1, 2)


class Script:
    """The actor's end of messages: it receives the ones that it was given, and keeps the actions that it sends."""

    def __init__(self, messages: list[WeightsMessage]) -> None:
        self._messages = messages
        self.actions: list[list[int]] = []

    def poll(self) -> None:
        return None

    def take(self) -> WeightsMessage:
        return self._messages.pop(0)

    def free_block(self) -> Block:
        return Block(SPACE, 200)

    def send(self, block: Block) -> None:
        self.actions.append(block.rows()["action"].tolist())

    def close(self) -> None:
        pass


def test_exploration_falls_by_the_steps_of_all_actors() -> None:
    """Between two messages the other actor took nearly all steps: this one must not explore as after its own few."""
    settings = Settings(
        hidden=(4,), total_steps=10_000, exploration_fraction=0.5, initial_epsilon=1.0, final_epsilon=0.0,
        train_interval=200, topology="asynchronous", actors=2,
    )  # fmt: skip
    made = dqn.algorithm(SPACE, settings)
    like = initial_weights(made, np.random.default_rng(0))[made.acts_with]
    messages = []
    for version, (step, granted, end) in enumerate([(0, 100, 0), (9_000, 200, 0), (9_200, 200, COMPLETED)]):
        message = WeightsMessage(sum(array.size for array in like.values()))
        message.say(version=version, step=step, granted=granted, end=end)
        message.vector[:] = pack(like)
        messages.append(message)
    script = Script(messages)
    always: Any = SimpleNamespace(
        act=lambda observations: np.ones(len(observations), np.int64), load=lambda weights: None
    )
    run = Run(1, Reports(), PhaseClock())
    ports: Any = script
    result = ActorRank(Patience(), ports, made, dqn, Counter(), always, like, run, 0, 2).explore(lambda: False)
    first, second, rest = script.actions
    assert (result.outcome, len(first), len(second), rest) == ("completed", 100, 100, [])
    assert 20 < sum(first) < 80
    assert sum(second) == 100
