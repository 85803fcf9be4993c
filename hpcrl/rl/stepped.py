"""What the loops have in common that only step environments: the random actions, the starts, and the counts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.rl.checkpoint import NamedArrays
from hpcrl.rl.interfaces import Act, Algorithm, Learner
from hpcrl.rl.runs import Run


class Drawn:
    """The actions of a run: those of a rollout are drawn together, and are the same in all ways of stepping."""

    def __init__(self, algorithm: Algorithm, run: Run) -> None:
        settings = algorithm.settings
        self._generator = np.random.default_rng([run.seed, 1])
        self._actions, self._shape = algorithm.space.actions, (settings.rollout_steps, settings.environments)

    def rollout(self) -> NDArray[np.int64]:
        """Return the actions (steps, environments) of a rollout."""
        return self._generator.integers(self._actions, size=self._shape)

    def state(self) -> dict[str, Any]:
        """Return the state of the random stream."""
        return dict(self._generator.bit_generator.state)

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self._generator.bit_generator.state = state


class Counted:
    """What was stepped, whoever steps: steps, episodes and the sum of rewards, and the state of the random actions."""

    def __init__(self, algorithm: Algorithm, learner: Learner, run: Run) -> None:
        self._run, self._total = run, algorithm.settings.total_steps
        self._drawn = Drawn(algorithm, run)
        self.act: Act = learner.act
        self.step = self.episodes = 0
        self._rewards = 0.0

    def measures(self) -> dict[str, float]:
        """Return the mean reward of a step."""
        return {"reward": self._rewards / self.step} if self.step else {}

    def moments(self) -> None:
        """Return None: observations are not normalised."""

    def state(self) -> tuple[NamedArrays, dict[str, Any]]:
        return {}, {"drawn": self._drawn.state(), "rewards": self._rewards}

    def load_state(self, arrays: NamedArrays, facts: dict[str, Any]) -> None:
        self._drawn.load_state(facts["drawn"])
        self._rewards = facts["rewards"]


def start_seeds(run: Run, step: int, count: int) -> list[int]:
    """Return new seeds of `count` environments, other ones at each step."""
    return [int(seed) for seed in np.random.SeedSequence([run.seed, 5, step]).generate_state(count)]
