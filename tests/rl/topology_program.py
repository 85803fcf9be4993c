"""Run by mpirun in a framework's own environment: trainings with a learner and actors, one after another.

The first argument is a framework, the second its mode, the third a list of cases in JSON. Rank 0 prints what each case gave, a line each.
A case that takes longer than the fourth argument, in seconds, ends the program with a traceback of each rank.
"""

from __future__ import annotations

import faulthandler
import json
import math
import random
import sys
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcrl.catalogue.registry import algorithms
from hpcrl.rl.envs.make import gymnasium_environment
from hpcrl.rl.make import make_exploration, make_training
from hpcrl.rl.runs import Run
from hpcrl.rl.train import train
from hpcrl.telemetry.phases import PhaseClock
from tests.rl.builders import Brighter, Reports

GRACE = 30.0  # seconds
SMALL = {
    "hidden": [16, 16], "total_steps": 600, "learning_starts": 60, "train_interval": 60, "updates": 8, "batch_size": 16,
    "buffer_size": 5000, "evaluation_interval": 300, "evaluation_episodes": 2, "acting": "numpy",
}  # fmt: skip


class Delayed:
    """Steps that take a random while."""

    def __init__(self, environment: Any, most: float, seed: int) -> None:
        self._environment, self._most, self._draw = environment, most, random.Random(seed)
        self.observation_space, self.action_space = environment.observation_space, environment.action_space
        self.reset = environment.reset

    def step(self, action: int) -> Any:
        if self._draw.random() < 0.1:
            time.sleep(self._most * self._draw.random())
        return self._environment.step(action)


class Watched:
    """Says when an episode begins, by creating a file, and begins after so many seconds."""

    def __init__(self, environment: Any, file: Path, seconds: float) -> None:
        self._environment, self._file, self._seconds = environment, file, seconds
        self.observation_space, self.action_space = environment.observation_space, environment.action_space
        self.step = environment.step

    def reset(self, **given: Any) -> Any:
        self._file.touch()
        time.sleep(self._seconds)
        return self._environment.reset(**given)


class Late:
    """An end of messages whose calls begin after a random while."""

    def __init__(self, ports: Any, late: Callable[[Any], Any]) -> None:
        self._ports, self._late = ports, late

    def __getattr__(self, name: str) -> Any:
        return self._late(getattr(self._ports, name))


def delayed(most: float, seed: int) -> Callable[[Any], Any]:
    """Return a decorator that makes a function wait before one call in ten, at most so many seconds."""
    draw = random.Random(seed)

    def late(function: Any) -> Any:
        def called(*given: Any) -> Any:
            if draw.random() < 0.1:
                time.sleep(most * draw.random())
            return function(*given)

        return called

    return late


class Seen:
    """A checksum of the transitions of each stream, in their order."""

    def __init__(self) -> None:
        self.sums: dict[int, int] = defaultdict(int)
        self.counts: dict[int, int] = defaultdict(int)

    def __call__(
        self,
        observation: Any,
        action: int,
        reward: float,
        following: Any,
        terminated: bool,
        ended: bool,
        stream: int = 0,
    ) -> None:
        facts = (observation.tobytes(), int(action), float(reward), following.tobytes(), bool(terminated), bool(ended))
        self.sums[stream] = zlib.crc32(repr(facts).encode(), self.sums[stream])
        self.counts[stream] += 1


def learner(
    case: dict[str, Any],
    settings: Any,
    world: Any,
    framework: str,
    execution: str,
    environment: Any,
    seed: int,
    stop: Any,
) -> dict[str, Any]:
    seen, reports, clock = Seen(), Reports(), PhaseClock()
    name = case.get("algorithm", "dqn")
    training = make_training(name, settings, framework, execution, environment, Run(seed, reports, clock, world=world))
    loop: Any = training.loop
    if world is not None:
        loop._wait.grace = GRACE  # no launcher ends who is late, and a busy machine makes everybody late
        if most_delay := case.get("delay"):
            late = delayed(most_delay, seed)
            loop._learn, loop._ports = late(loop._learn), Late(loop._ports, late)
        if lasts := case.get("learning_lasts"):
            learn = loop._learn
            loop._learn = lambda: (time.sleep(lasts), learn())
    memory: Any = loop._updates.memory
    add, add_block = memory.add, memory.add_block
    memory.add = lambda *given: (seen(*given), add(*given))[1]

    def seen_block(*given: Any) -> None:
        *columns, stream = given
        for transition in zip(*columns, strict=True):
            seen(*transition, stream)
        add_block(*given)

    memory.add_block = seen_block
    if world is None:  # the explorer has the method itself
        loop._explorer._store = memory.add
    most = case.get("stop_at", math.inf)

    def stops() -> bool:
        return bool(stop()) or sum(seen.counts.values()) >= most

    result = train(training, case.get("goal"), stops, Path(case["checkpoint"]) if "checkpoint" in case else None)
    weights = training.learner.state()
    return {
        "outcome": result.outcome,
        "steps": result.steps,
        "updates": loop.updates,
        "episodes": len(reports.episodes),
        "returns": zlib.crc32(repr(reports.episodes).encode()),
        "evaluations": reports.evaluations,
        "weights": zlib.crc32(b"".join(weights[key].tobytes() for key in sorted(weights))),
        "finite": all(bool(np.isfinite(array).all()) for array in weights.values()),
        "sums": dict(seen.sums),
        "counts": dict(seen.counts),
        "seconds": {phase: seconds for phase, seconds in clock.seconds.items() if seconds},
        "facts": loop.facts() if world else None,
        "gave_up": loop.gave_up if world else None,
    }


def run_case(case: dict[str, Any], framework: str, execution: str) -> dict[str, Any] | None:
    everyone, actors = MPI.COMM_WORLD, case["actors"]
    settings_of = algorithms()[case.get("algorithm", "dqn")].settings
    given = {**SMALL, **case.get("settings", {})}
    given |= {key: tuple(value) for key, value in given.items() if isinstance(value, list)}
    settings = settings_of(**given, topology=case["topology"], actors=actors)
    part = everyone.Split(int(everyone.rank <= actors), everyone.rank)
    if everyone.rank > actors:
        part.Free()
        return None
    rank, seed = everyone.rank, case.get("seed", 1)
    name = case.get("environment", "CartPole-v1")
    make: Any = Brighter if name == "Brighter" else partial(gymnasium_environment, name, None)
    environment = make
    if delay := case["slow"].get(str(rank)) if "slow" in case else case.get("delay"):
        environment = lambda: Delayed(make(), delay, 1000 * seed + rank)  # noqa: E731
    signalled = threading.Event()
    stop = signalled.is_set
    if "evaluation_lasts" in case:
        evaluating = Path(case["evaluating"])
        if rank == 0:  # its environments are those of evaluations
            environment = lambda: Watched(make(), evaluating, case["evaluation_lasts"])  # noqa: E731
        elif rank in case["stopped_by_evaluation"]:
            stop = evaluating.exists
    if rank in case.get("stopped", ()):
        threading.Timer(case["stop_after"], signalled.set).start()
    if rank == 0:
        facts = learner(case, settings, part, framework, execution, environment, seed, stop)
        others = part.gather(None)
        facts["sent"] = {number: other for number, other in enumerate(others[1:])}
        if case.get("sequential"):
            alone = settings_of(**given)
            facts["sequential"] = learner(case, alone, None, framework, execution, make, seed, lambda: False)
    else:
        run = Run(seed, Reports(), PhaseClock(), world=part, stop=stop)
        name = case.get("algorithm", "dqn")
        actor = make_exploration(name, settings, framework, execution, environment, run)
        seen, add = Seen(), actor._add
        actor._explorer._store = lambda *given: (seen(*given), add(*given))[1]
        if most_delay := case.get("delay"):
            own: Any = actor
            own._ports = Late(own._ports, delayed(most_delay, 1000 * seed + rank))
        explored = actor.explore(stop)
        seconds = {phase: spent for phase, spent in run.clock.seconds.items() if spent}
        sums = (seen.sums[0], seen.counts[0])
        part.gather({"outcome": explored.outcome, "steps": explored.steps, "sums": sums, "seconds": seconds})
    part.Free()
    return facts if rank == 0 else None


def main(framework: str, execution: str, cases: str, limit: str) -> None:
    for number, case in enumerate(json.loads(cases)):
        if MPI.COMM_WORLD.rank == 0:
            print(f"case {number}: {json.dumps(case)}", file=sys.stderr, flush=True)
        faulthandler.dump_traceback_later(float(limit), exit=True)
        facts = run_case(case, framework, execution)
        if facts is not None:
            print(json.dumps(facts), flush=True)
        MPI.COMM_WORLD.Barrier()
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main(*sys.argv[1:])
