"""The one table of parity: for each algorithm its variants, and a batch for each of its steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.catalogue.registry import algorithms
from hpcrl.rl.algorithms.rainbow import Noise
from hpcrl.rl.interfaces import Algorithm, Arrays, Space
from tests.rl.builders import CARTPOLE, made_of
from tests.rl.builders import batch as dqn_batch

Draw = np.random.Generator


def _dqn() -> list[dict[str, Any]]:
    """The plain, double and duelling losses, each with either error, Adam and RMSprop, clipping that acts and that does not; gradient descent."""
    cases: list[dict[str, Any]] = []
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
    plain = {"loss": "mse", "optimizer": "sgd"}
    for double, clip in itertools.product((False, True), (0.0, 0.1)):
        cases.append({**plain, "double": double, "dueling": double, "max_gradient_norm": clip})
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


def _rainbow() -> list[dict[str, Any]]:
    """Each part alone, all but each part, none and all, with clipping that acts and that does not."""
    parts = ("double", "dueling", "noisy", "distributional")
    cases = []
    for chosen in itertools.product((True, False), repeat=4):
        if sum(chosen) in (0, 1, 3, 4):
            clip = 0.1 if sum(chosen) % 2 else 10.0
            small = {"atoms": 11, "value_minimum": -10.0, "value_maximum": 10.0, "optimizer_epsilon": 1e-4}
            cases.append({**dict(zip(parts, chosen, strict=True)), "max_gradient_norm": clip, **small})
    return cases


def rainbow_batch(draw: Draw, settings: Any, count: int = 128, inputs: int = 4) -> Arrays:
    """Returns beyond the support, terminal transitions, and windows of one to three steps."""
    observations, following = (draw.normal(size=(count, inputs)).astype(np.float32) for _ in range(2))
    returns = (3 * draw.normal(size=count)).astype(np.float32)
    discounts = (0.99 ** draw.integers(1, 4, count) * (draw.random(count) > 0.1)).astype(np.float32)
    importance = draw.random(count).astype(np.float32)
    made = made_of("rainbow", settings, Space(inputs, 2))
    noise = Noise(made, draw)
    actions = draw.integers(0, 2, count)
    return observations, actions, returns, following, discounts, importance, noise.draw(), noise.draw()


# Two real numbers as an action.
STEERED = Space(4, 2, bounds=((-1.0, 1.0), (-2.0, 2.0)))


def _vpg() -> list[dict[str, Any]]:
    """Actions of both kinds, either optimiser and activation, clipping of the gradient that acts and none."""
    return [
        {
            "continuous": continuous, "optimizer": optimizer, "max_gradient_norm": clip, "optimizer_epsilon": 1e-4,
            "activation": "relu" if optimizer == "adam" else "tanh",
        }
        for continuous, optimizer, clip in itertools.product((False, True), ("adam", "rmsprop"), (0.0, 0.1))
    ]  # fmt: skip


def vpg_batch(draw: Draw, space: Space, count: int = 128) -> Arrays:
    """Actions of the space that are not always likely ones."""
    observations = draw.normal(size=(count, space.inputs)).astype(np.float32)
    advantages, returns = (draw.normal(size=count).astype(np.float32) for _ in range(2))
    if space.continuous:
        actions = draw.normal(size=(count, space.actions)).astype(np.float32)
        return observations, actions, advantages, 3 * returns
    return observations, draw.integers(0, space.actions, count), advantages, 3 * returns


def _td3() -> list[dict[str, Any]]:
    """Either activation, either optimiser, clipping of the gradient that acts and none; target noise of which much or little is clipped."""
    return [
        {
            "continuous": True, "activation": activation, "optimizer": optimizer, "max_gradient_norm": clip,
            "noise_clip": 0.5 if clip else 0.1, "optimizer_epsilon": 1e-4,
        }
        for activation, optimizer, clip in (
            ("tanh", "adam", 0.0), ("relu", "adam", 0.1), ("tanh", "rmsprop", 0.1), ("relu", "rmsprop", 0.0),
        )
    ]  # fmt: skip


def td3_batch(draw: Draw, space: Space, count: int = 128) -> Arrays:
    """Terminal transitions, actions up to the bounds, and noise of the target policy."""
    observations, following = (draw.normal(size=(count, space.inputs)).astype(np.float32) for _ in range(2))
    actions = draw.normal(size=(count, space.actions)).clip(-1, 1).astype(np.float32)
    rewards = (3 * draw.normal(size=count)).astype(np.float32)
    terminated = (draw.random(count) < 0.1).astype(np.float32)
    return observations, actions, rewards, following, terminated, normal(draw, count, space.actions)


IMAGES = Space(44 * 44 * 2, 3, channels=2)


def image_batch(draw: Draw, count: int = 32) -> Arrays:
    """Images of coarse squares, so that they differ for filters."""
    coarse = (draw.integers(0, 256, (count, 4, 4, 2), np.uint8) for _ in range(2))
    shown, following = (each.repeat(11, axis=1).repeat(11, axis=2).reshape(count, -1) for each in coarse)
    rewards = (3 * draw.normal(size=count)).astype(np.float32)
    return shown, draw.integers(0, 3, count), rewards, following, (draw.random(count) < 0.1).astype(np.float32)


# One to three convolutions, each option of the loss once. Epsilon as above.
IMAGE_CASES: list[dict[str, Any]] = [
    {"filters": (8, 12, 10), "double": True, "dueling": True, "optimizer_epsilon": 1e-4},
    {"filters": (6, 5), "loss": "mse", "max_gradient_norm": 0.1, "optimizer_epsilon": 1e-4},
    {"filters": (4,), "optimizer": "rmsprop", "optimizer_epsilon": 1e-4},
]

CASES: dict[str, list[dict[str, Any]]] = {
    "dqn": _dqn(), "ppo": _ppo(), "rainbow": _rainbow(), "td3": _td3(), "vpg": _vpg(),
}  # fmt: skip
BATCHES: dict[str, Callable[[Draw, Algorithm], Arrays]] = {
    "dqn": lambda draw, made: dqn_batch(draw),
    "ppo": lambda draw, made: ppo_batch(draw),
    "rainbow": lambda draw, made: rainbow_batch(draw, made.settings),
    "td3": lambda draw, made: td3_batch(draw, made.space),
    "vpg": lambda draw, made: vpg_batch(draw, made.space),
}


# How many arrays of a batch, the last ones, are not of one transition each: PPO's clip range, Rainbow's noise.
SHARED = {"ppo": 1, "rainbow": 2}


def made_for(name: str, hidden: tuple[int, ...], case: dict[str, Any]) -> Algorithm:
    """Return an algorithm with the settings of a case, on CartPole's space or one of continuous actions."""
    settings = {key: value for key, value in case.items() if key != "continuous"}
    space = STEERED if case.get("continuous") else CARTPOLE
    return made_of(name, algorithms()[name].settings(hidden=hidden, **settings), space)


def part_of(algorithm: str, part: str) -> list[dict[str, Any]]:
    """Return all cases, some that have every value or every pair of values of the options, or a few that have nearly every value."""
    cases = CASES[algorithm]
    if part == "few":
        return cases[5:16:10]
    return cases if part == "all" else covering(cases, {"values": 1, "pairs": 2}[part])


def covering(cases: list[dict[str, Any]], size: int) -> list[dict[str, Any]]:
    """Choose case after case, the one with the most combinations of values that no case before it has, until none is missing."""
    combinations = [set(itertools.combinations(sorted(case.items()), size)) for case in cases]
    missing = set().union(*combinations)
    chosen = []
    while missing:
        best = max(range(len(cases)), key=lambda number: len(missing & combinations[number]))
        chosen.append(cases[best])
        missing -= combinations[best]
    return chosen


def gumbel(draw: Draw, count: int, actions: int = 2) -> NDArray[np.float32]:
    return draw.gumbel(size=(count, actions)).astype(np.float32)


def normal(draw: Draw, count: int, actions: int = 2) -> NDArray[np.float32]:
    return draw.normal(size=(count, actions)).astype(np.float32)
