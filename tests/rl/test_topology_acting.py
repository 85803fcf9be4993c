"""An actor of a topology, with messages that a test writes in place of a learner."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpcrl.catalogue.algorithms.dqn import Settings
from hpcrl.errors import HpcrlError
from hpcrl.rl.algorithms import dqn
from hpcrl.rl.interfaces import Space
from hpcrl.rl.runs import Result, Run
from hpcrl.rl.topologies.acting import ActorRank
from hpcrl.rl.topologies.wire import ALL, COMPLETED, Block, WeightsMessage
from hpcrl.rl.weights import initial_weights, pack
from hpcrl.telemetry.phases import PhaseClock
from tests.rl.builders import Counter, Reports

SPACE = Space(1, 2)
SETTINGS = Settings(
    hidden=(4,), total_steps=10_000, exploration_fraction=0.5, initial_epsilon=1.0, final_epsilon=0.0,
    train_interval=200, topology="asynchronous", actors=2,
)  # fmt: skip


class Script:
    """The actor's end of messages: it receives the ones that it was given, and keeps the actions that it sends, and the phase of each call."""

    def __init__(self, messages: list[WeightsMessage], clock: PhaseClock) -> None:
        self._messages, self._clock = messages, clock
        self.actions: list[list[int]] = []
        self.phases: set[tuple[str, str]] = set()

    def poll(self) -> None:
        return None

    def take(self) -> WeightsMessage:
        self.phases.add(("take", self._clock.phase))
        return self._messages.pop(0)

    def free_block(self) -> Block:
        self.phases.add(("free_block", self._clock.phase))
        return Block(SPACE, 200)

    def send(self, block: Block) -> None:
        self.phases.add(("send", self._clock.phase))
        self.actions.append(block.rows()["action"].tolist())

    def close(self) -> None:
        self.phases.add(("close", self._clock.phase))


def explored(messages: list[dict[str, int]], implementation: Any = dqn) -> tuple[Result, Script]:
    """Let actor 0 of two explore with these headers of messages, and return its result and what it sent."""
    made = dqn.algorithm(SPACE, SETTINGS)
    like = initial_weights(made, np.random.default_rng(0))[made.acts_with]
    written = []
    for header in messages:
        message = WeightsMessage(sum(array.size for array in like.values()))
        message.say(**header)
        message.vector[:] = pack(like)
        written.append(message)
    always: Any = SimpleNamespace(
        act=lambda observations: np.ones(len(observations), np.int64), load=lambda weights: None
    )
    run = Run(1, Reports(), PhaseClock())
    script = Script(written, run.clock)
    ports: Any = script
    rank = ActorRank(ports, made, implementation, Counter(), always, like, run, 0, 2)
    return rank.explore(lambda: False), script


def test_exploration_falls_by_the_steps_of_all_actors() -> None:
    """Between two messages the other actor took nearly all steps: this one must not explore as after its own few."""
    messages = [
        {"granted": 100},
        {"version": 1, "step": 9_000, "stored": 100, "granted": 200},
        {"version": 2, "step": 9_200, "stored": 200, "granted": 200, "end": COMPLETED},
    ]
    result, script = explored(messages)
    first, second, rest = script.actions
    assert (result.outcome, len(first), len(second), rest) == ("completed", 100, 100, [])
    assert 20 < sum(first) < 80
    assert sum(second) == 100


def test_a_fast_actor_does_not_count_its_steps_for_the_slow_ones() -> None:
    """Until the learner knows better, each of its steps counts for both actors. Then only those that are still on their way do."""
    steps: list[int] = []

    def choose(observation: Any, step: int, episodes: int) -> int:
        steps.append(step)
        return 1

    messages = [
        {"granted": 100},
        # The learner has 60 steps of this actor and 10 of the other one, and 40 of this actor are on their way.
        {"version": 1, "step": 70, "stored": 60, "granted": 150},
        {"version": 2, "step": 160, "stored": 150, "granted": 160},
        # In rounds nothing is on its way.
        {"version": 3, "step": 400, "stored": ALL, "granted": 170},
        {"version": 4, "step": 410, "stored": ALL, "granted": 170, "end": COMPLETED},
    ]
    explored(messages, SimpleNamespace(chooser=lambda *given: choose))
    assert steps == [
        *range(0, 200, 2),
        *range(70 + 2 * 40, 250, 2),
        *range(160, 180, 2),
        *range(400, 420, 2),
    ]


def test_the_steps_before_a_checkpoint_count_too() -> None:
    steps: list[int] = []

    def choose(observation: Any, step: int, episodes: int) -> int:
        steps.append(step)
        return 1

    messages = [
        {"step": 5_000, "granted": 3},
        {"version": 1, "step": 5_004, "stored": 3, "granted": 4},
        {"version": 1, "step": 5_006, "stored": 4, "granted": 4, "end": COMPLETED},
    ]
    explored(messages, SimpleNamespace(chooser=lambda *given: choose))
    assert steps == [5_000, 5_002, 5_004, 5_004]


def test_weights_that_are_older_than_the_last_ones_are_told() -> None:
    with pytest.raises(HpcrlError, match="actor 0: the weights' version went back from 2 to 1: the learner's messages"):
        explored([{"version": 2, "granted": 10}, {"version": 1, "granted": 20}])


def test_only_sending_and_receiving_are_in_their_phases() -> None:
    """The waits in all of these calls are the phase `wait`, which the class that waits enters itself. The first message is still set-up."""
    _, script = explored([{"granted": 10}, {"version": 1, "granted": 10, "end": COMPLETED}])
    expected = {("take", "setup"), ("take", "receive"), ("free_block", "other"), ("send", "send"), ("close", "other")}
    assert script.phases == expected
