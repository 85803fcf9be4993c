"""PPO (Schulman et al. 2017, arXiv 1707.06347) as data."""

from __future__ import annotations

from hpcrl.catalogue.algorithms.ppo import Settings
from hpcrl.rl.interfaces import Algorithm, Network, Space, Step


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
