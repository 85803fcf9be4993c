"""The one table of parity: for each algorithm its variants, and a batch for each of its steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.rl.interfaces import Arrays
from tests.rl.builders import batch as dqn_batch

Draw = np.random.Generator


def _dqn() -> list[dict[str, Any]]:
    """The plain, double and duelling losses, each with either error, either optimiser, clipping that acts and that does not."""
    cases = []
    for loss, form, optimizer, clip in itertools.product(
        ("huber", "mse"), ("plain", "double", "dueling", "both"), ("adam", "rmsprop"), (10.0, 0.1)
    ):
        dueling = form in ("dueling", "both")
        cases.append(
            {
                "loss": loss,
                "double": form in ("double", "both"),
                "dueling": dueling,
                "optimizer": optimizer,
                # RMSprop's first steps, and the small gradients of duelling, divide by what float32 rounds: a larger epsilon
                # takes that noise away (NumPy's own float32 strays as far), and shows a misplaced epsilon all the more.
                "optimizer_epsilon": 1e-8 if optimizer == "adam" and not dueling else 1e-4,
                "max_gradient_norm": clip,
            }
        )
    return cases


def _ppo() -> list[dict[str, Any]]:
    """Values clipped or not, an entropy bonus or none, clipping of the gradient that acts and that does not."""
    return [
        # As above: epsilon takes away what float32 rounds.
        {"clip_values": values, "entropy_weight": entropy, "max_gradient_norm": clip, "optimizer_epsilon": 1e-4}
        for values, entropy, clip in itertools.product((False, True), (0.0, 0.01), (100.0, 0.1))
    ]


def ppo_batch(draw: Draw, count: int = 128, inputs: int = 4) -> Arrays:
    """Probabilities that have moved so far that a third of the ratios are clipped, on either side."""
    numbers = [draw.normal(size=count).astype(np.float32) for _ in range(3)]
    observations, actions = draw.normal(size=(count, inputs)).astype(np.float32), draw.integers(0, 2, count)
    logs = (np.log(0.5) + 0.2 * draw.normal(size=count)).astype(np.float32)
    return observations, actions, logs, *numbers, np.array([0.2], np.float32)


CASES: dict[str, list[dict[str, Any]]] = {"dqn": _dqn(), "ppo": _ppo()}
BATCHES: dict[str, Callable[[Draw], Arrays]] = {"dqn": dqn_batch, "ppo": ppo_batch}


def part_of(algorithm: str, part: str) -> list[dict[str, Any]]:
    """Return all cases, some, or a few that have nearly every option once."""
    cases = CASES[algorithm]
    if part == "all":
        return cases
    return cases[::5] if part == "some" else cases[5:16:10]


def gumbel(draw: Draw, count: int, actions: int = 2) -> NDArray[np.float32]:
    return draw.gumbel(size=(count, actions)).astype(np.float32)
