"""Run by benchmarks.topologies in PyTorch's environment, on every rank: one training. Rank 0 prints wall time and phases of all ranks."""

from __future__ import annotations

import json
import sys
from functools import partial
from time import perf_counter
from typing import Any

from mpi4py import MPI

from hpcrl.catalogue.algorithms.dqn import Settings
from hpcrl.catalogue.training import has_actors
from hpcrl.rl.envs.make import gymnasium_environment
from hpcrl.rl.make import make_exploration, make_training
from hpcrl.rl.runs import Run
from hpcrl.telemetry.phases import PhaseClock


class Silence:
    """Hears reports and keeps nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *given: None


def main(text: str) -> None:
    given = json.loads(text)
    settings = Settings(**{**given, "hidden": tuple(given["hidden"])})
    world, clock = MPI.COMM_WORLD, PhaseClock()
    reporter: Any = Silence()
    run = Run(1, reporter, clock, world=world if has_actors(settings) else None)
    environment = partial(gymnasium_environment, "CartPole-v1", None)
    if world.rank:
        actor = make_exploration("dqn", settings, "torch", "eager", environment, run)
        actor.explore(lambda: False)
        world.gather(dict(clock.so_far()[0]))
        return
    training = make_training("dqn", settings, "torch", "eager", environment, run)
    clock.switch("other")
    before, begun = dict(clock.so_far()[0]), perf_counter()
    training.loop.advance(settings.total_steps, lambda: False)
    wall = perf_counter() - begun
    training.loop.close()
    phases = {phase: seconds - before.get(phase, 0.0) for phase, seconds in clock.so_far()[0].items()}
    facts = training.loop.facts() if world.size > 1 else {}  # type: ignore[attr-defined]
    print(json.dumps({"wall": wall, "ranks": [phases, *world.gather(None)[1:]], "facts": facts}))


if __name__ == "__main__":
    main(sys.argv[1])
