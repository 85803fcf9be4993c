"""The random policy: it takes uniformly random actions and learns nothing, so that a run measures the stepping of environments alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hpcrl.catalogue.fields import choice, integer
from hpcrl.catalogue.training import STEPPING, WORKERS, workers_fault

TITLE = "Random policy"
FAMILY = "stepping"
FRAMEWORKS = ("numpy", "jax")
ACTIONS = ("discrete",)
OBSERVATIONS = ("vector", "image")
FUSED = True
LEARNS = False


@dataclass(frozen=True)
class Settings:
    """A run is `rollouts` of `rollout_steps` steps of each of the `environments`; `stepping` says how those are stepped, and `workers`
    in how many processes, if it is in processes.

    The return of the random policy is evaluated once, at the end, in `evaluation_episodes` episodes.
    """

    rollouts: int = integer(1)
    rollout_steps: int = integer(512)
    environments: int = integer(1, 1, 100_000)
    stepping: str = choice(*STEPPING)
    workers: str = choice(*WORKERS)
    evaluation_episodes: int = integer(10)
    stop_at_goal: ClassVar[bool] = False

    @property
    def total_steps(self) -> int:
        """Return the steps of all environments together."""
        return self.rollouts * self.rollout_steps * self.environments

    @property
    def evaluation_interval(self) -> int:
        """Return the steps after which the policy is evaluated: all of them."""
        return self.total_steps

    @property
    def confirmation_episodes(self) -> int:
        """Return the episodes that confirm a goal."""
        return self.evaluation_episodes


def fault(settings: Settings, ranks: int) -> tuple[str, str] | None:
    """Return the setting that `ranks` ranks cannot run with, and why; None if they can."""
    if ranks > 1:
        return "environments", f"{ranks} ranks: a random policy has nothing to share: set `parallelism` to none"
    return workers_fault(settings)
