"""The learner of a topology, with blocks that a test writes in place of actors: what does not fit is told, and nobody is awaited for ever."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpcrl.catalogue.algorithms.dqn import Settings
from hpcrl.errors import HpcrlError, UsageError
from hpcrl.rl import checkpoint
from hpcrl.rl.algorithms import dqn
from hpcrl.rl.distributed.group import Group
from hpcrl.rl.interfaces import Space
from hpcrl.rl.make import Training
from hpcrl.rl.runs import Result, Run
from hpcrl.rl.topologies.learning import AsynchronousLoop, RoundLoop
from hpcrl.rl.topologies.make import check_equal, join, make_loop
from hpcrl.rl.topologies.ports import PairLearner, Patience, RankGone
from hpcrl.rl.topologies.wire import ALL, COMPLETED, GOING, PREEMPTED, Block, WeightsMessage
from hpcrl.rl.train import train
from hpcrl.telemetry.phases import PhaseClock
from tests.rl.builders import Counter, Reports, first_weights, learner_of, made_of

SPACE = Space(1, 2)


def block_of(actor: int, number: int = 0, count: int = 0, sent: int = 0, version: int = 0, end: int = GOING) -> Block:
    block = Block(SPACE, 100)
    nothing = np.zeros(1, np.float32)
    for _ in range(count):
        block.add(nothing, 0, 1.0, nothing, False, False)
    block.say(actor=actor, number=number, version=version, sent=sent, end=end)
    return block


class Rounds:
    """The learner's end of rounds: it receives the blocks that it was given, and waits for ever when there are no more."""

    def __init__(self, wait: Patience, *rounds: list[Block]) -> None:
        self._wait, self._rounds = wait, list(rounds)
        self.ends: list[int] = []

    def gather(self) -> list[Block]:
        if not self._rounds:
            self._wait(lambda: False)
        return self._rounds.pop(0)

    def publish(self, message: WeightsMessage) -> None:
        self.ends.append(message["end"])


class Posted:
    """The learner's end of messages of asynchronous actors, who send the blocks that it was given."""

    def __init__(self, *blocks: Block) -> None:
        self._blocks, self._looks = list(blocks), 0
        self.told: list[tuple[int, int, int]] = []

    def arrived(self) -> Iterator[Block]:
        self._looks += 1
        assert self._looks < 2_000, "it waits for ever"
        if self._blocks:
            yield self._blocks.pop(0)

    def is_free(self, actor: int) -> bool:
        return True

    def send(self, actor: int, content: WeightsMessage) -> None:
        self.told.append((actor, content["step"], content["stored"]))

    def close(self) -> None:
        pass


def loop_of(kind: Any, ports: Any, wait: Patience, clock: PhaseClock | None = None, **settings: Any) -> Any:
    given = {"hidden": (4,), "train_interval": 20, "total_steps": 1000, "actors": 2} | settings
    made = made_of("dqn", Settings(**given), SPACE)
    learner = learner_of("numpy", "eager", made, first_weights(made))
    size = sum(array.size for array in learner.weights(made.acts_with).values())
    return kind(ports, wait, made, dqn, learner, Run(1, Reports(), clock or PhaseClock()), size, 2)


@pytest.mark.parametrize(
    ("wrong", "version", "said"),
    [
        (
            {"number": 1, "sent": 10},
            0,
            "actor 0: its block 1 with 10 transitions in all came after 0 blocks with 0: messages were lost or came twice",
        ),
        (
            {"sent": 11},
            0,
            "actor 0: its block 0 with 11 transitions in all came after 0 blocks with 0: messages were lost or came twice",
        ),
        (
            {"sent": 10, "version": 5},
            0,
            "actor 0: its block 0 has version 5 of the weights, the one before 0, the learner 0: versions only grow",
        ),
        ({"sent": 10}, 3, "actor 0: its weights were 3 intervals old, but they may be 1 at most"),
    ],
)
def test_a_block_that_does_not_fit_is_told_once(wrong: dict[str, int], version: int, said: str) -> None:
    """After the fault no message is exchanged: the next block would not fit either, and its fault would replace the first."""
    wait = Patience()
    ports = Rounds(wait, [block_of(0, count=10, **wrong)], [block_of(0, number=7), block_of(1, number=7)])
    loop = loop_of(RoundLoop, ports, wait, topology="collective")
    loop.version = version

    def advance_and_close() -> None:
        try:
            loop.advance(1000, lambda: False)
        finally:
            loop.close()

    with pytest.raises(HpcrlError) as refusal:
        advance_and_close()
    assert str(refusal.value) == said
    assert ports.ends == [GOING]


def test_versions_of_an_actor_do_not_go_back() -> None:
    wait = Patience()
    blocks = [
        [block_of(0, 0, 10, 10, version=3), block_of(1, 0, 10, 10, version=3)],
        [block_of(0, 1, 10, 20, version=2)],
    ]
    loop = loop_of(RoundLoop, Rounds(wait, *blocks), wait, topology="collective")
    loop.version = 3
    with pytest.raises(HpcrlError, match="has version 2 of the weights, the one before 3, the learner 3"):
        loop.advance(1000, lambda: False)


def blocks_of_round(number: int, count: int, version: int = 0, end: int = GOING) -> list[Block]:
    """Return the blocks of two actors, who sent `count` transitions in this round and 10 in each before."""
    return [block_of(actor, number, count, 10 * number + count, version, end) for actor in (0, 1)]


def trained(total: int, file: Path | None, *rounds: list[Block]) -> tuple[Result, list[tuple[int, float]], Any]:
    """Train with rounds of 20 steps, and return the result, the evaluations and the loop."""
    wait = Patience(grace=0.0)
    learning = {
        "learning_starts": 1,
        "updates": 3,
        "batch_size": 4,
        "evaluation_interval": 20,
        "evaluation_episodes": 2,
    }
    ports = Rounds(wait, *rounds)
    loop = loop_of(RoundLoop, ports, wait, topology="collective", total_steps=total, **learning)
    made = made_of("dqn", loop._settings, SPACE)
    run = replace(loop._run, world=SimpleNamespace())
    training = Training(made, loop._learner, loop, [Counter(), Counter()], run, dqn)
    return train(training, checkpoint_file=file), loop._run.reporter.evaluations, loop


@pytest.mark.parametrize("total", [40, 60])
def test_what_a_signal_in_a_round_prevented_is_done_after_the_resume(tmp_path: Path, total: int) -> None:
    """The actors finish their round, and its updates and its evaluation are still due: also if it was the last one."""
    first, *later = blocks_of_round(0, 10), blocks_of_round(1, 10), blocks_of_round(2, 10, version=1)
    later = later[: total // 20 - 1]
    last = blocks_of_round(total // 20, 0, total // 20 - 1, COMPLETED)
    whole = trained(total, None, first, *later, last)
    assert (whole[0].outcome, whole[0].steps) == ("completed", total)

    file = tmp_path / "c.npz"
    told = [block_of(0, 1, 10, 20), block_of(1, 1, 10, 20, end=PREEMPTED)]
    stopped = trained(total, file, first, told, blocks_of_round(2, 0, 0, COMPLETED))
    assert (stopped[0].outcome, stopped[0].steps, stopped[2].updates) == ("preempted", 40, 3)
    assert [step for step, _ in stopped[1]] == [20]

    rest = [blocks_of_round(0, 10, version=2)] if total > 40 else []
    resumed = trained(total, file, *rest, blocks_of_round(len(rest), 0, 2, COMPLETED))
    assert resumed[0] == whole[0] and resumed[0].final_score is not None
    assert stopped[1] + resumed[1] == whole[1] and len(whole[1]) == total // 20
    assert resumed[2].updates == whole[2].updates == 3 * total // 20
    for facts in (each[2].facts() for each in (whole, resumed)):  # of both attempts
        assert (sum(facts["transitions"]), sum(facts["staleness"].values())) == (total, total // 10)
    states = [each[2]._learner.state() for each in (whole, resumed)]
    assert all(array.tobytes() == states[1][name].tobytes() for name, array in states[0].items())


def test_a_training_that_fails_goes_on_from_its_last_evaluation(tmp_path: Path) -> None:
    file, first, second = tmp_path / "c.npz", blocks_of_round(0, 10), blocks_of_round(1, 10)
    whole = trained(40, tmp_path / "other.npz", first, second, blocks_of_round(2, 0, 1, COMPLETED))
    assert not list(tmp_path.glob(".*"))
    with pytest.raises(HpcrlError, match="messages were lost or came twice"):
        trained(40, file, first, [block_of(0, 7, 10, 10), block_of(1, 7, 10, 10)])
    (saved, facts) = checkpoint.load(file) or ({}, {})
    assert (facts["step"], facts["evaluated"]) == (20, 20) and saved
    resumed = trained(40, file, blocks_of_round(0, 10, version=1), blocks_of_round(1, 0, 1, COMPLETED))
    assert resumed[0] == whole[0] and resumed[1] == whole[1][1:]
    assert resumed[2].updates == whole[2].updates


def test_a_checkpoint_that_cannot_be_written_ends_no_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    rounds = [blocks_of_round(0, 10), blocks_of_round(1, 10), blocks_of_round(2, 0, 1, COMPLETED)]
    result, _, loop = trained(40, tmp_path / "file/c.npz", *rounds)
    assert result.outcome == "completed"
    (told,) = loop._run.reporter.events
    assert told.startswith("no checkpoint was written at step 20: ")


def test_a_learner_whose_actors_do_not_answer_after_a_signal_gives_up() -> None:
    """It ends as after any signal, so that it writes its checkpoint, and tells nobody: who is left waits for the launcher."""
    wait = Patience(grace=0.0)
    ports = Rounds(wait)
    loop = loop_of(RoundLoop, ports, wait, topology="collective")
    assert not loop.gave_up
    assert loop.advance(1000, lambda: True) is False
    loop.close()
    assert loop.gave_up
    assert ports.ends == [GOING]


def test_a_learner_that_gives_up_at_the_end_says_so_too() -> None:
    wait = Patience(grace=0.0)
    ports = Rounds(wait, [block_of(0, 0, 10, 10), block_of(1, 0, 10, 10)])
    loop = loop_of(RoundLoop, ports, wait, topology="collective", total_steps=20)
    signalled = [False]
    assert loop.advance(20, lambda: signalled[0]) is True
    assert not loop.gave_up
    signalled[0] = True
    loop.close()
    assert loop.gave_up
    assert ports.ends == [GOING, COMPLETED]


def test_actors_hear_of_a_signal_to_the_learner_alone() -> None:
    """They are healthy, but their next blocks would take longer than the grace. They look for messages after each step."""
    signalled: list[bool] = []

    class Obedient(Posted):
        def arrived(self) -> Iterator[Block]:
            self._looks += 1
            if self._looks == 30:
                signalled.append(True)
            if len(self.told) == 4:  # the first messages, and the last ones
                yield from [block_of(0, 0, 3, 3, end=COMPLETED), block_of(1, 0, 4, 4, end=COMPLETED)]
                self.told.clear()

    ports = Obedient()
    wait = Patience(lambda: bool(signalled), grace=0.0)
    loop = loop_of(AsynchronousLoop, ports, wait, topology="asynchronous")
    assert loop.advance(1000, lambda: bool(signalled)) is False
    loop.close()
    assert not loop.gave_up
    assert loop.facts()["transitions"] == [3, 4]


def test_a_signal_to_an_actor_limits_the_learner_s_waits_too() -> None:
    """Actor 0 tells of a signal, and actor 1 is dead: the learner, which got no signal, must not wait for it for ever."""
    ports = Posted(block_of(0, end=PREEMPTED))
    loop = loop_of(AsynchronousLoop, ports, Patience(grace=0.0), topology="asynchronous")
    assert loop.advance(1000, lambda: False) is False
    loop.close()
    assert loop.gave_up


def test_asynchronous_actors_hear_how_many_of_their_own_steps_are_stored() -> None:
    """The messages at the beginning, the answers to two blocks, and the end."""
    last = [block_of(0, end=COMPLETED), block_of(1, 2, 0, 20, end=COMPLETED)]
    ports = Posted(block_of(1, 0, 10, 10), block_of(1, 1, 10, 20), *last)
    loop = loop_of(AsynchronousLoop, ports, Patience(), topology="asynchronous", total_steps=1000)
    assert loop.advance(20, lambda: False) is True
    loop.close()
    assert ports.told == [(0, 0, 0), (1, 0, 0), (1, 10, 10), (1, 20, 20), (0, 20, 0), (1, 20, 20)]


def test_in_rounds_everything_that_was_sent_is_stored() -> None:
    wait = Patience()
    ports = Rounds(wait, [block_of(0, 0, 10, 10), block_of(1, 0, 10, 10)])
    stored: list[int] = []
    ports.publish = lambda message: stored.append(message["stored"])  # type: ignore[method-assign]
    loop_of(RoundLoop, ports, wait, topology="collective").advance(20, lambda: False)
    assert stored == [ALL, ALL]


def test_a_signal_ends_the_wait_for_actors_that_do_not_start() -> None:
    made = made_of("dqn", Settings(hidden=(4,), topology="collective", actors=2), SPACE)
    learner = learner_of("numpy", "eager", made, first_weights(made))
    never = SimpleNamespace(Test=lambda: False)
    world = SimpleNamespace(size=3, rank=0, Iallgather=lambda mine, of_all: never)
    run = Run(1, Reports(), PhaseClock(), world=world, stop=lambda: True)
    with pytest.raises(RankGone):
        make_loop(made, dqn, lambda: None, learner, run)


class Ranks:
    """A communicator whose learner said something else in one place."""

    size, rank = 3, 1

    def __init__(self, place: int | None) -> None:
        self._place = place

    def Iallgather(self, mine: Any, of_all: Any) -> Any:
        self.sent = mine.tolist()
        of_all[:] = mine
        if self._place is not None:
            of_all[0, self._place] += 5
        return SimpleNamespace(Test=lambda: True)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (0, "rank 1 of 3: its network has 17 weights, the learner's 22: all ranks must run the same cell"),
        (1, "rank 1 of 3: its network has 1 inputs, the learner's 6: all"),
        (2, "rank 1 of 3: its network has 2 actions, the learner's 7: all"),
        (3, "rank 1 of 3: its settings are not the learner's: all ranks must run the same cell"),
    ],
)
def test_a_rank_that_differs_from_the_learner_says_in_what(place: int, said: str) -> None:
    made = made_of("dqn", Settings(hidden=(4,), topology="collective", actors=2), SPACE)
    check_equal(Patience(), Ranks(None), made, 17)
    with pytest.raises(HpcrlError) as refusal:
        check_equal(Patience(), Ranks(place), made, 17)
    assert str(refusal.value).startswith(said)


def test_ranks_tell_each_other_a_checksum_of_their_settings() -> None:
    sent = []
    for updates in (1, 2):
        made = made_of("dqn", Settings(hidden=(4,), topology="collective", actors=2, updates=updates), SPACE)
        world = Ranks(None)
        check_equal(Patience(), world, made, 17)
        sent.append(world.sent)
    assert sent[0][:3] == sent[1][:3] == [17, 1, 2] and sent[0][3] != sent[1][3]


def test_an_actor_waits_for_a_busy_learner_whatever_signal_came() -> None:
    answers = iter([False] * 200 + [True])
    Patience(lambda: True)(lambda: next(answers))
    assert next(answers, None) is None


def test_the_weights_have_left_when_the_updates_begin() -> None:
    """MPI sends on only while it is called, and no update calls it: the actor would wait for them."""
    answers = iter([False] * 200 + [True])
    sent = SimpleNamespace(Test=lambda: next(answers))
    world = SimpleNamespace(Isend=lambda buffer, dest, tag: sent)
    PairLearner(Patience(), world, Block(SPACE, 1)).publish(WeightsMessage(1))
    assert next(answers, None) is None


def test_waits_are_a_phase_of_their_own_wherever_they_are() -> None:
    clock = PhaseClock("send")
    seen: list[str] = []
    Patience(clock=clock)(lambda: bool(seen.append(clock.phase)) or len(seen) > 30)
    assert set(seen) == {"wait"} and clock.phase == "send"


def test_copying_blocks_is_receiving() -> None:
    clock = PhaseClock()
    seen: list[str] = []

    class Watched(Block):
        def rows(self) -> Any:
            seen.append(clock.phase)
            return super().rows()

    block = Watched(SPACE, 10)
    block.say(actor=0, sent=0)
    rounds = Rounds(Patience(), [block, block_of(1)])
    loop_of(RoundLoop, rounds, Patience(clock=clock), clock, topology="collective").advance(1000, lambda: True)
    assert seen[:1] == ["receive"]
    seen.clear()
    answers = iter([False, True])
    loop = loop_of(AsynchronousLoop, Posted(block), Patience(clock=clock), clock, topology="asynchronous")
    loop.advance(1000, lambda: next(answers))
    assert seen[:1] == ["receive"]


class WithoutLibrary(ModuleType):
    """mpi4py where no MPI library can be loaded."""

    def __getattr__(self, name: str) -> Any:
        if name == "MPI":
            raise RuntimeError("cannot load MPI library\n  libmpi.so: cannot open shared object file")
        raise AttributeError(name)


def test_an_mpi_that_is_not_there_or_has_other_ranks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="mpi4py: is not installed in this environment"):
        join(Group(rank=0, ranks=3))
    monkeypatch.setitem(sys.modules, "mpi4py", WithoutLibrary("mpi4py"))
    said = r"finds no MPI library here \(cannot load MPI library libmpi.so: cannot open shared object file\): install Open MPI"
    with pytest.raises(UsageError, match=said):
        join(Group(rank=0, ranks=3))
    module: Any = ModuleType("mpi4py")
    module.MPI = SimpleNamespace(
        COMM_WORLD=SimpleNamespace(size=1),
        Get_library_version=lambda: "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4",
    )
    monkeypatch.setitem(sys.modules, "mpi4py", module)
    with pytest.raises(HpcrlError, match=r"mpi4py over Open MPI v4\.1\.4 sees 1 of this cell's 3 ranks"):
        join(Group(rank=0, ranks=3))
    with pytest.raises(HpcrlError, match="does not belong to the mpirun on PATH"):
        join(Group(rank=0, ranks=3))
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    with pytest.raises(HpcrlError, match=r"does not know this launcher \(`launch\.mpi`"):
        join(Group(rank=0, ranks=3))
    module.MPI.COMM_WORLD.size = 3
    assert join(Group(rank=0, ranks=3)) is module.MPI.COMM_WORLD
