"""Run in a framework's own environment: how far its learner strays from the specification in float64, as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any
from unittest.mock import patch

import numpy as np

from hpcrl.rl.frameworks.numpy.core import Learner as NumpyLearner
from hpcrl.rl.interfaces import Algorithm, Arrays, Floats, Learner
from hpcrl.rl.specification import networks
from tests.rl.builders import exact, first_weights, fresh, learner_of
from tests.rl.cases import BATCHES, gumbel, made_for, normal, part_of

activate = networks.activate
HIDDEN = {"dqn": (120, 84), "ppo": (64, 64), "rainbow": (64, 32), "td3": (64, 32), "vpg": (64, 32)}


def stray(reference: NumpyLearner, learner: Learner, name: str) -> float:
    mine = learner.weights(name)
    return max(float(np.abs(array - mine[name]).max()) for name, array in reference.weights(name).items())


def main(framework: str, execution: str, part: str, *algorithms: str) -> None:
    results = {}
    for name in algorithms:
        fresh(framework)
        results[name] = [check(name, framework, execution, case) for case in part_of(name, part)]
    print(json.dumps(results))


def check(name: str, framework: str, execution: str, case: dict[str, Any]) -> dict[str, Any]:
    made, draw = made_for(name, HIDDEN[name], case), np.random.default_rng(0)
    weights = first_weights(made, draw)
    for group in weights.values():  # PPO begins with a nearly uniform policy, whose greedy actions rounding decides
        group |= {key: 100 * array for key, array in group.items() if key.startswith("actor.layers.2.")}
    reference, learner = exact(made, weights), learner_of(framework, execution, made, weights)
    # Gradients themselves are smaller than those that Adam and RMSprop divide by their size.
    rate = 2.5e-2 if made.settings.optimizer == "sgd" else 2.5e-4
    states = np.random.default_rng(1).normal(size=(1000, 4)).astype(np.float32)
    noise = {"ppo": lambda: gumbel(draw, 1000), "rainbow": lambda: BATCHES[name](draw, made)[-1]}
    noise["vpg"] = (lambda: normal(draw, 1000)) if made.space.continuous else noise["ppo"]
    # It acts before the updates, too: a framework may keep what it made of the first weights.
    assert _acted(reference, learner, states) == 1000
    if name in noise:
        assert _sampled(reference, learner, states, noise[name]()) < 1e-5
    strays: list[float] = []
    aux = 0.0
    for number in range(1, 11):
        given, answers = _steady_update(reference, made, draw, rate)
        for step, wanted in zip(made.steps, answers, strict=True):
            returned = learner.update(step.name, learner.transfer(given), rate)
            for one, other in zip(wanted, returned, strict=True):
                mine = other.asnumpy() if hasattr(other, "asnumpy") else np.asarray(other)
                aux = max(aux, float(np.abs(one - mine.reshape(one.shape)).max()))
        for target in made.targets if number in (5, 7) else ():
            for each in (reference, learner):
                each.sync(target, 1.0 if number == 5 else 0.25)
        strays.append(max(stray(reference, learner, group) for group in made.groups))
    sampled = _sampled(reference, learner, states, noise[name]()) if name in noise else 0.0
    restored = learner_of(framework, execution, made, weights)
    restored.load_state({name: np.array(array) for name, array in learner.state().items()})
    found = {
        "case": " ".join(f"{key}={value}" for key, value in case.items()),
        "one": strays[0],
        "ten": strays[-1],
        "aux": aux,
        "target": max((stray(reference, learner, target) for target in made.targets), default=0.0),
        "moved": max(
            float(np.abs(array - weights[group][name]).max())
            for group in made.groups
            for name, array in reference.weights(group).items()
        ),
        "agree": _acted(reference, learner, states),
        "sampled": sampled,
    }
    for each in (learner, restored):
        for step in made.steps:
            each.update(step.name, each.transfer(given), 1e-3)
    found["restored"] = all(
        np.array_equal(array, again)
        for group in made.groups
        for array, again in zip(learner.weights(group).values(), restored.weights(group).values(), strict=True)
    )
    return found | {"compiled": learner.compiled()}


def _steady_update(reference: NumpyLearner, made: Algorithm, draw: Any, rate: float) -> tuple[Arrays, list[Arrays]]:
    """Update the reference with a batch none of whose hidden sums is nearly zero; return the batch and what each step gave.

    Where ReLU bends, the last bit decides whether a unit has a slope: one sum in a million, and ten updates strayed 1.2e-5
    with one CPU's order of adding, 4e-8 with another's.
    """
    before = {name: np.array(array) for name, array in reference.state().items()}
    while True:
        given, sums = BATCHES[made.name](draw, made), [1.0]

        def watched(linear: Floats, activation: str, sums: list[float] = sums) -> Floats:
            sums.append(float(np.abs(linear).min()) if activation == "relu" else 1.0)
            return activate(linear, activation)

        with patch.object(networks, "activate", watched):
            answers = [reference.update(step.name, given, rate) for step in made.steps]
        if min(sums) > 1e-6:
            return given, answers
        reference.load_state(before)


def _acted(reference: NumpyLearner, learner: Learner, states: Any) -> int:
    """Return for how many states the actions are the same, shown one by one, by four, and all together: the least."""
    wanted = reference.act(states)
    one_by_one = np.concatenate([learner.act(states[place : place + 1]) for place in range(100)])
    by_four = np.concatenate([learner.act(states[place : place + 4]) for place in range(0, 1000, 4)])
    agree = [_equal(wanted, acted).sum() for acted in (by_four, learner.act(states))]
    return int(min(*agree, _equal(wanted[:100], one_by_one).sum() + 900))


def _sampled(reference: NumpyLearner, learner: Learner, states: Any, noise: Any) -> float:
    """Return how far log-probabilities and values stray; infinitely, if an action differs."""
    wanted, mine = reference.sample(states, noise), learner.sample(states, noise)
    if not _equal(wanted[0], mine[0]).all():
        return float("inf")
    return max((float(np.abs(one - other).max()) for one, other in zip(wanted[1:], mine[1:], strict=True)), default=0.0)


def _equal(wanted: Any, mine: Any) -> Any:
    """Tell for each row whether actions are the same: whole numbers, or real ones but for rounding."""
    return (
        wanted == mine if wanted.ndim == 1 else (np.abs(wanted - mine) < 1e-5).all(axis=1) & (mine.dtype == np.float32)
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
