"""VPG (Williams 1992, doi 10.1007/BF00992696; Spinning Up's form) as data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcrl.catalogue.algorithms.vpg import Settings
from hpcrl.rl.interfaces import Algorithm, Arrays, Network, Space, Step
from hpcrl.rl.rollout import Samples


def algorithm(space: Space, settings: Settings) -> Algorithm:
    """Return VPG on this space: an actor and a critic, each with a gradient step and an optimiser of its own."""
    log_std = settings.initial_log_std if space.continuous else None
    actor = Network(space.inputs, settings.hidden, space.actions, log_std=log_std)
    critic = Network(space.inputs, settings.hidden, 1)
    values = Step("value", "critic", loss="value_loss", times=settings.value_steps, rate="value_learning_rate")
    return Algorithm(
        name="vpg",
        space=space,
        settings=settings,
        groups={"actor": (actor,), "critic": (critic,)},
        targets={},
        steps=(Step("policy", "actor", loss="policy_loss"), values),
        acts_with="actor",
        samples_with=("critic",),
    )


def batch(samples: Samples, settings: Settings, at: Callable[[float, float], Any]) -> Arrays:
    """Return a batch of both losses: observations, actions, advantages and returns."""
    return samples.observations, samples.actions, samples.advantages, samples.returns
