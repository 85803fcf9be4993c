"""DQN (Mnih et al. 2015, doi 10.1038/nature14236) as data, and its epsilon-greedy exploration."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hpcrl.catalogue.algorithms.dqn import Settings
from hpcrl.catalogue.images import filters_fault, side_of
from hpcrl.errors import UsageError
from hpcrl.rl.choosing import epsilon_greedy
from hpcrl.rl.interfaces import Actor, Algorithm, Choose, ChooseMany, Network, Observations, Space, Step
from hpcrl.rl.replay.uniform import Replay
from hpcrl.rl.runs import Run
from hpcrl.rl.schedules import exploration


def algorithm(space: Space, settings: Settings) -> Algorithm:
    """Return DQN on this space: one network, and a target copy of it.

    With `dueling` the last layer has one more output, the first: the state's value. Images have convolutions first.

    Raises:
        UsageError: the images are too small for the convolutions.
    """
    filters = settings.filters if space.channels else ()
    if filters and (wrong := filters_fault(filters, side_of(space.inputs, space.channels))):
        raise UsageError(f"dqn: filters: {wrong}")
    outputs = space.actions + settings.dueling
    network = Network(space.inputs, settings.hidden, outputs, channels=space.channels, filters=filters)
    return Algorithm(
        name="dqn",
        space=space,
        settings=settings,
        groups={"online": (network,)},
        targets={"target": "online"},
        steps=(Step("update", "online", ("target",)),),
        acts_with="online",
        sync_every=settings.target_interval,
        sync_share=settings.target_share,
        sync_unit=settings.target_unit,
    )


def memory(algorithm: Algorithm, capacity: int, run: Run) -> Replay:
    """Return the memory of a rank."""
    return Replay(capacity, algorithm.space.inputs, algorithm.space.dtype)


def chooser(algorithm: Algorithm, actor: Actor, draw: np.random.Generator, switch: Callable[[str], None]) -> Choose:
    """Return the epsilon-greedy choice; `switch` enters the phase `act`."""
    actions, settings, act = algorithm.space.actions, algorithm.settings, actor.act

    def choose(observation: Observations, step: int, episodes: int) -> int:
        if draw.random() < exploration(settings, step, episodes):
            return int(draw.integers(actions))
        switch("act")
        return int(act(observation.reshape(1, -1))[0])  # [None] has other strides and would compile again

    return choose


def many_chooser(
    algorithm: Algorithm, actor: Actor, draw: np.random.Generator, switch: Callable[[str], None]
) -> ChooseMany:
    """Return the epsilon-greedy choice for several environments. Each has its own coin, or all have a shared one."""
    settings, act = algorithm.settings, actor.act

    def greedy(observations: Observations) -> NDArray[np.int64]:
        switch("act")
        return act(observations)

    epsilon = partial(exploration, settings, episodes=0)
    return epsilon_greedy(draw, algorithm.space.actions, epsilon, greedy, settings.shared_coin)
