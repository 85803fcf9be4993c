"""Run as each rank of a group: parts of a batch on each, against the NumPy learner in float64 on the whole batch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from hpcrl.catalogue.algorithms.dqn import Settings
from hpcrl.formats.facts import Asked
from hpcrl.rl.distributed.agreement import any_rank, check_same_start
from hpcrl.rl.distributed.group import Group
from hpcrl.rl.frameworks import make_collective
from hpcrl.run.allocation import read_allocation
from hpcrl.run.training import before_import
from hpcrl.telemetry.phases import PhaseClock
from tests.rl.builders import dqn, exact, first_weights, learner_of
from tests.rl.cases import BATCHES, CASES, SHARED, made_for
from tests.rl.parity_program import HIDDEN, stray

# Which case of an algorithm is averaged: one in which many options are on.
CHOSEN = {"ppo": -1, "rainbow": 0}


def main(algorithm: str, framework: str, execution: str, parallelism: str, out: str) -> None:
    allocation = read_allocation()
    group = Group(allocation.rank, allocation.ranks, allocation.local_rank, allocation.addresses)
    before_import([framework], Asked(1, 1024, 60), group)
    collective = make_collective(framework, parallelism, group, PhaseClock())
    assert collective is not None
    defaults, draw = dqn(Settings(hidden=HIDDEN["dqn"])), np.random.default_rng(0)
    case = CASES[algorithm][CHOSEN.get(algorithm, -4)]
    made = defaults if algorithm == "dqn" else made_for(algorithm, HIDDEN[algorithm], case)
    weights = first_weights(made, draw)
    for group_weights in weights.values():
        check_same_start(collective, group_weights)
    learner, reference = learner_of(framework, execution, made, weights, collective), exact(made, weights)
    strays, aux = [], 0.0
    for _ in range(5):
        whole = BATCHES[algorithm](draw, made)
        part = np.arange(128).reshape(group.ranks, -1)[group.rank]
        cut = len(whole) - SHARED.get(algorithm, 0)
        own = (*(array[part] for array in whole[:cut]), *whole[cut:])
        for step in made.steps:
            wanted = reference.update(step.name, whole, 2.5e-4)
            returned = learner.read(learner.update(step.name, learner.transfer(own), 2.5e-4))
            for one, other in zip(wanted, returned, strict=True):
                # One number for each transition, or the mean of all of them.
                other = other.reshape(-1)
                mine = other if one.size == len(whole[0]) else collective.average_array(other)
                exactly = one[part] if one.size == len(whole[0]) else one.reshape(1)
                aux = max(aux, float(np.abs(exactly - mine).max()))
        strays.append(max(stray(reference, learner, name) for name in made.groups))
    facts = {
        "name": collective.name,
        "strays": strays,
        "aux": aux,
        "somebody": any_rank(collective, group.rank == group.ranks - 1),
        "nobody": any_rank(collective, False),
        "compiled": learner.compiled(),
    }
    Path(out, f"{group.rank}.json").write_text(json.dumps(facts))
    del learner
    collective.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
