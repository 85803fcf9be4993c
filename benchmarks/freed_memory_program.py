"""Run in a framework's environment: one training's seconds and page faults of an environment step, as JSON."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from functools import partial
from resource import RUSAGE_SELF, getrusage
from time import process_time
from unittest.mock import patch

from hpcrl.catalogue.fields import check
from hpcrl.catalogue.registry import algorithms
from hpcrl.formats.facts import Asked
from hpcrl.rl.distributed.group import Group
from hpcrl.rl.envs.make import gymnasium_environment
from hpcrl.rl.make import make_training
from hpcrl.rl.runs import Run
from hpcrl.rl.smoke import Silent
from hpcrl.run import training
from hpcrl.telemetry.phases import PhaseClock

WARM, MEASURED = 4_096, 8_192  # environment steps
EVALUATION = {"total_steps": 2 * (WARM + MEASURED), "evaluation_interval": WARM + MEASURED}


def main(way: str, algorithm: str, framework: str, execution: str) -> None:
    with patch.object(training, "keep_freed_memory") if way == "glibc" else nullcontext():
        training.before_import([framework], Asked(1, 1024, 60), Group())
    settings = check(algorithm, algorithms()[algorithm].settings, EVALUATION)
    make = partial(gymnasium_environment, "CartPole-v1", None)
    loop = make_training(algorithm, settings, framework, execution, make, Run(1, Silent(), PhaseClock())).loop
    loop.advance(WARM, lambda: False)
    faults, begun = getrusage(RUSAGE_SELF).ru_minflt, process_time()
    loop.advance(WARM + MEASURED, lambda: False)
    seconds, faults = process_time() - begun, getrusage(RUSAGE_SELF).ru_minflt - faults
    print(json.dumps({"seconds": seconds / MEASURED, "faults": faults / MEASURED}))


if __name__ == "__main__":
    main(*sys.argv[1:])
