"""A new algorithm and a new framework are files: none of hpcrl's own changes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

# Two networks that learn in turn, the second from what the first returned beside its loss; a slow target of the first.
FILES = {
    "catalogue/algorithms/twins.py": """
        from dataclasses import dataclass
        from hpcrl.catalogue.algorithms.dqn import Settings as DqnSettings, fault
        from hpcrl.catalogue.fields import number

        TITLE, FAMILY, ACTIONS, OBSERVATIONS, FUSED = "Twins", "off_policy", ("discrete",), ("vector",), False
        FRAMEWORKS = ("numpy", "abacus")

        @dataclass(frozen=True)
        class Settings(DqnSettings):
            share: float = number(0.5, 0, 1)
        """,
    "catalogue/frameworks/abacus.py": """
        TITLE, MODES, ONE_PROCESS, PARALLELISM, PACKAGES = "Abacus", ("eager", "quick"), (), (), ()
        OBSERVATIONS, STEPPING = ("vector",), ("sync",)
        DEVICES, THREADS, OUT_OF_MEMORY, PRIVATE_DIRECTORIES = ("cpu",), (), (), ("ABACUS_CACHE",)

        def variables(cpus, given):
            return {"BEADS": str(cpus)}
        """,
    "rl/algorithms/twins.py": """
        from hpcrl.rl.algorithms.dqn import chooser, memory
        from hpcrl.rl.interfaces import Algorithm, Network, Step

        def algorithm(space, settings):
            network = Network(space.inputs, settings.hidden, space.actions)
            steps = (Step("first", "first", ("slow",), aux=("error",)), Step("second", "second", ("first",), every=2))
            groups = {"first": (network,), "second": (network,)}
            return Algorithm("twins", space, settings, groups, {"slow": "first"}, steps, "second", 1, settings.share)
        """,
    "rl/specification/twins.py": """
        from hpcrl.rl.specification.dqn import greedy, loss_and_gradient as dqn

        seen = []

        def loss_and_gradient(own, batch, settings, other):
            loss, gradient, _ = dqn(own, batch, settings, other)
            seen.append(loss)
            return loss, gradient, (batch[2],)
        """,
    "rl/frameworks/abacus/runtime.py": "def configure(): pass",
    "rl/frameworks/abacus/core.py": """
        from hpcrl.rl.frameworks.numpy.core import PAGES, Learner as NumpyLearner

        class Learner(NumpyLearner):
            def compiled(self):
                return "beads"
        """,
}
PROGRAM = """
import importlib, json, os, sys
from pathlib import Path
place = Path(sys.argv[1])
for package in ("catalogue.algorithms", "catalogue.frameworks", "rl.algorithms", "rl.specification", "rl.frameworks"):
    importlib.import_module(f"hpcrl.{package}").__path__.append(str(place.joinpath(*package.split("."))))
from hpcrl.formats.facts import Asked
from hpcrl.rl.distributed.group import Group
from hpcrl.run.recorder import Recorder
from hpcrl.run.training import TrainingCell, before_import, train_cell
from hpcrl.telemetry.phases import PhaseClock
facts = {}
for framework, execution in (("numpy", "eager"), ("abacus", "quick")):
    config = {"framework": framework, "execution": execution, "seed": 1, "share": 0.25}
    before_import([framework], Asked(3, 1024, 60), Group())
    hyperparameters = {"total_steps": 400, "hidden": [8], "learning_starts": 100, "train_interval": 10, "updates": 4}
    hyperparameters |= {"evaluation_interval": 400, "evaluation_episodes": 2}
    workload = {"algorithm": "twins", "environment": "CartPole-v1", "hyperparameters": hyperparameters}
    recorder = Recorder(place / f"{framework}.rec", clock := PhaseClock())
    recorder.header({})
    ended = train_cell(
        TrainingCell(workload, config, Asked(1, 1024, 60)), recorder, clock, lambda: False, place / f"{framework}.npz", Group()
    )
    recorder.footer(ended.outcome, ended.reason, ended.facts)
    losses = importlib.import_module("hpcrl.rl.specification.twins").seen
    facts[framework] = [ended.outcome, ended.facts["final_score"], ended.facts["compiled"], len(losses), losses[-1]]
    losses.clear()
facts["variables"] = [os.environ["BEADS"], os.path.isdir(os.environ["ABACUS_CACHE"])]
print(json.dumps(facts))
"""


def test_a_toy_of_each_trains(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(dedent(text))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]
    facts = json.loads(done.stdout)
    numpy, abacus = facts["numpy"], facts["abacus"]
    # 31 intervals of four updates, in which the second network learns twice; one of each to warm up.
    assert numpy[3] == abacus[3] == 31 * 6 + 2
    assert numpy[4] == abacus[4]
    assert (numpy[0], abacus[0]) == ("completed", "completed")
    assert (numpy[1], abacus[1:3]) == (abacus[1], [numpy[1], "beads"])
    assert facts["variables"] == ["3", True]
