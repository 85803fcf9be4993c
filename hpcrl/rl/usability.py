"""``python -m hpcrl.rl.usability FRAMEWORK EXECUTION FLAVOUR``: what one mode of a framework costs its user, as JSON.

A DQN agent with hpcrl's default settings takes updates from a random batch of CartPole's shapes. In fused mode an update
includes the step of the environment before it. Then the same is tried with a typical mistake: the network expects one
value more than the observations have.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from hpcrl.catalogue.algorithms.dqn import Settings
from hpcrl.rl.algorithms.dqn import algorithm
from hpcrl.rl.envs.make import gymnasium_environment
from hpcrl.rl.frameworks import make_learner
from hpcrl.rl.interfaces import Arrays, Space
from hpcrl.rl.runs import Run
from hpcrl.rl.smoke import Silent
from hpcrl.rl.weights import initial_weights
from hpcrl.telemetry.meter import own_peak
from hpcrl.telemetry.phases import PhaseClock
from hpcrl.telemetry.provenance import visible_gpus

LATER_UPDATES = 20
_INPUTS, _ACTIONS = 4, 2  # of CartPole
_MOST_CHARACTERS = 300  # of the last line of a traceback
# One update after each step; these settings matter in fused mode only.
_SETTINGS = Settings(learning_starts=1, train_interval=1, updates=1, evaluation_interval=1)


def updates(framework: str, execution: str, device: str = "cpu", inputs: int = _INPUTS) -> Callable[[], None]:
    """Make an agent, and return a function that takes one update and waits for the device.

    Args:
        inputs: number of values that the network expects; observations have 4.
    """
    made = algorithm(Space(inputs, _ACTIONS), _SETTINGS)
    learner = make_learner(framework, execution, made, initial_weights(made, np.random.default_rng(0)), device)
    if execution == "fused":
        compiled = importlib.import_module(f"hpcrl.rl.frameworks.{framework}.fused_off_policy")
        environment = gymnasium_environment("CartPole-v1", None)
        loop = compiled.make_loop(made, None, lambda: environment, learner, Run(1, Silent(), PhaseClock()))

        def advance() -> None:
            loop.advance(loop.step + 1, lambda: False)

        return advance
    batch = _batch(_SETTINGS.batch_size)

    def update() -> None:
        learner.update(made.steps[0].name, learner.transfer(batch), _SETTINGS.learning_rate)
        learner.synchronize()

    return update


def load(framework: str, execution: str) -> None:
    """Import what the updates need, so that no import is in their times: it is measured elsewhere, in a process that has imported nothing."""
    importlib.import_module("gymnasium")
    _page(framework)  # with the framework, and what its files import
    for name in ("runtime", *(("fused_off_policy", "fused_dqn") if execution == "fused" else ())):
        importlib.import_module(f"hpcrl.rl.frameworks.{framework}.{name}")


def _batch(count: int) -> Arrays:
    draw = np.random.default_rng(0)
    observations, following = draw.normal(size=(2, count, _INPUTS)).astype(np.float32)
    rewards, terminated = draw.random((2, count)).round().astype(np.float32)
    return observations, draw.integers(0, _ACTIONS, count), rewards, following, terminated


def times(framework: str, execution: str, device: str) -> dict[str, float]:
    """Return the seconds to the end of the first update, from when all is imported (:func:`load`), and the median of later updates."""
    start = time.perf_counter()
    update = updates(framework, execution, device)
    update()
    first = time.perf_counter() - start
    later = []
    for _ in range(LATER_UPDATES):
        start = time.perf_counter()
        update()
        later.append(time.perf_counter() - start)
    return {"first_update_seconds": first, "update_seconds": statistics.median(later)}


def mistake(framework: str, execution: str, device: str) -> dict[str, Any]:
    """Make the mistake, and describe the traceback that Python prints: lines, characters, end, whether it names the page.

    Without an error it has 0 lines.
    """
    try:
        updates(framework, execution, device, _INPUTS + 1)()
    except Exception as error:  # any error of a framework
        text = "".join(traceback.format_exception(error)).strip()
    else:
        text = ""
    lines = text.splitlines()
    page = "/".join(Path(str(_page(framework).__file__)).parts[-2:])  # such as torch/dqn.py
    return {
        "traceback_lines": len(lines),
        "traceback_characters": len(text),
        "traceback_end": lines[-1][:_MOST_CHARACTERS] if lines else "no error",
        "names_page": page in text,
    }


def _page(framework: str) -> ModuleType:
    return importlib.import_module(f"{_packages(framework)[-1]}.dqn")


def _packages(framework: str) -> list[str]:
    """Return the package of a framework and, if they are elsewhere, that of its pages."""
    package = f"hpcrl.rl.frameworks.{framework}"
    pages = getattr(importlib.import_module(f"{package}.core"), "PAGES", None)
    return [package, pages] if pages else [package]


def lines_of_files(framework: str, execution: str) -> dict[str, int]:
    """Return the number of non-empty lines of each of hpcrl's files for a framework.

    Files for several ranks are left out; those of the compiled loops count for fused mode only.
    """
    counts: dict[str, int] = {}
    for package in _packages(framework):
        for file in resources.files(package).iterdir():
            name = file.name.removesuffix(".py")
            compiled = name.startswith("fused_") and execution != "fused"
            if file.name.endswith(".py") and name not in ("__init__", "collectives") and not compiled:
                lines = file.read_text(encoding="utf-8").splitlines()
                counts[name] = counts.get(name, 0) + sum(bool(line.strip()) for line in lines)
    return counts


def main(framework: str, execution: str, flavour: str) -> None:
    """Print the measurements of one mode. Its updates come before everything that would make the process larger."""
    gpus = list(visible_gpus().values()) if flavour == "cuda" else []
    device = "cuda" if gpus else "cpu"
    load(framework, execution)
    facts: dict[str, Any] = dict(times(framework, execution, device))
    facts |= {"peak_memory": own_peak(), "device": gpus[0] if gpus else "cpu"}
    facts |= {"lines": lines_of_files(framework, execution), **mistake(framework, execution, device)}
    print(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
