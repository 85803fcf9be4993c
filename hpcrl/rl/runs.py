"""One training of one rank: what it is given besides its settings, whom it reports to, and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcrl.rl.distributed.collective import Collective
from hpcrl.telemetry.phases import PhaseClock


class Reporter(Protocol):
    """Receives the reports of a training; times are seconds of training."""

    def episode(self, step: int, value: float, length: int) -> None: ...

    def evaluation(self, step: int, value: float) -> None: ...

    def confirmation(self, step: int, value: float, reached: bool) -> None: ...

    def progress(self, step: int, total: int) -> None: ...

    def event(self, text: str) -> None:
        """Take a remark for the user, one sentence."""

    def spent(self) -> dict[str, float | None]:
        """Return the times so far, for a checkpoint."""

    def resumed(self, step: int, spent: dict[str, float | None]) -> None:
        """Continue from the times that :meth:`spent` returned when the checkpoint of this step was written."""


@dataclass(frozen=True)
class Run:
    """One training of one rank: its seed, who hears of it, and the other ranks.

    `world` is the MPI communicator of a topology's learner and actors. With `precise_phases` the loop waits for the device after every update, so that no phase contains another's work. The
    device then cannot work while the loop continues. `prune` takes step and mean return of each evaluation, and tells whether to end early.
    `stop` tells whether a signal has come: a topology's learner asks it while it waits for its actors to start. `marks` are environment steps at which the
    loop reports its progress, besides those at which it does anyway.
    """

    seed: int
    reporter: Reporter
    clock: PhaseClock
    collective: Collective | None = None
    precise_phases: bool = False
    world: Any = None
    prune: Callable[[int, float], bool] = lambda step, mean: False
    stop: Callable[[], bool] = lambda: False
    marks: tuple[int, ...] = ()

    @property
    def rank(self) -> int:
        return self.collective.rank if self.collective else 0

    @property
    def ranks(self) -> int:
        return self.collective.ranks if self.collective else 1


@dataclass(frozen=True)
class Policy:
    """The policy of an evaluation: its environment step and mean return, the weights that act, and the moments of the observations
    by which they see them (None: they see them as they are)."""

    step: int
    score: float
    weights: Mapping[str, NDArray[np.floating[Any]]]
    moments: Any


@dataclass(frozen=True)
class Result:
    """The end of a run: `outcome` is completed, pruned, preempted (a checkpoint was written) or diverged.

    `policies` has the `best` one by evaluation, the first of equal ones, and the `last` one; on rank 0 only.
    """

    outcome: str
    steps: int
    episodes: int
    final_score: float | None
    best_score: float | None
    goal_step: int | None
    policies: Mapping[str, Policy] = field(default_factory=dict, compare=False)
