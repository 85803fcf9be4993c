"""Run as each rank of a group: parts of a batch on each, against the NumPy learner in float64 on the whole batch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from hpcrl.rl.distributed.group import Group, any_rank, check_same_start
from hpcrl.rl.frameworks import make_collective, make_dqn_learner
from hpcrl.rl.frameworks.numpy.dqn import Learner as NumpyLearner
from hpcrl.rl.learner import Batch, DqnSettings, Network, initial_weights
from hpcrl.run.allocation import read_allocation
from hpcrl.run.training import before_import
from tests.rl.parity_program import batch


def main(framework: str, execution: str, parallelism: str, out: str) -> None:
    allocation = read_allocation()
    group = Group(allocation.rank, allocation.ranks, allocation.local_rank, allocation.addresses)
    before_import({"framework": framework}, {"cpus": 1}, group)
    collective = make_collective(framework, parallelism, group)
    assert collective is not None
    network, draw, settings = Network(4, (120, 84), 2), np.random.default_rng(0), DqnSettings()
    weights = dict(initial_weights(network, draw))
    check_same_start(collective, weights)
    learner = make_dqn_learner(framework, execution, network, weights, settings, "cpu", collective)
    exact = NumpyLearner(network, weights, settings, dtype=np.float64)
    strays = []
    for _ in range(5):
        whole = batch(draw)
        part = np.arange(128).reshape(group.ranks, -1)[group.rank]
        exact.update(whole, 2.5e-4)
        own = Batch(**{name: values[part] for name, values in vars(whole).items()})
        learner.update(learner.transfer(own), 2.5e-4)
        mine = learner.weights()
        strays.append(max(float(np.abs(each - mine[name]).max()) for name, each in exact.weights().items()))
    facts = {
        "name": collective.name,
        "strays": strays,
        "somebody": any_rank(collective, group.rank == group.ranks - 1),
        "nobody": any_rank(collective, False),
        "compiled": learner.compiled(),
    }
    Path(out, f"{group.rank}.json").write_text(json.dumps(facts))
    del learner
    collective.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
