"""PPO (Schulman et al. 2017, arXiv 1707.06347) as data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcrl.catalogue.algorithms.ppo import Settings
from hpcrl.rl.interfaces import Algorithm, Arrays, Network, Space, Step
from hpcrl.rl.rollout import Samples

_FAR = 0.1  # twice the larger of the divergences (0.01 or 0.05) that Spinning Up calls appropriate between two policies


def algorithm(space: Space, settings: Settings) -> Algorithm:
    """Return PPO on this space: an actor and a critic, as one group, so that one norm clips the gradient of both."""
    actor = Network(space.inputs, settings.hidden, space.actions, "actor", gain=0.01)
    critic = Network(space.inputs, settings.hidden, 1, "critic", gain=1.0)
    return Algorithm(
        name="ppo",
        space=space,
        settings=settings,
        groups={"both": (actor, critic)},
        targets={},
        steps=(Step("update", "both", aux=("divergence",)),),
        acts_with="both",
    )


def remarks(settings: Settings, measures: dict[str, float]) -> list[str]:
    """Return what a user should know of a training, one sentence each."""
    divergence = measures.get("divergence", 0.0)
    if divergence <= _FAR:
        return []
    return [
        f"the policy moved far in each rollout: its last minibatch had a KL divergence of {divergence:.2g} from the policy that acted, "
        "on average: a lower learning_rate or fewer epochs may learn more steadily"
    ]


def batch(samples: Samples, settings: Settings, at: Callable[[float, float], Any]) -> Arrays:
    """Return a batch of the loss: the samples, and the clip range (1,) at this step.

    `at` gives what goes linearly from a value to another over the training.
    """
    return *samples, at(settings.clip_range, settings.final_clip_range).reshape(1)
