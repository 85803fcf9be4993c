"""The loop that only steps environments: random actions are drawn before, and nothing is learnt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcrl.rl.algorithms.random_policy import Drawn, start_seeds
from hpcrl.rl.checkpoint import NamedArrays
from hpcrl.rl.interfaces import Act, Algorithm, Learner, VectorEnvironment
from hpcrl.rl.runs import Run
from hpcrl.rl.vector.make import make_vector


class SteppingLoop:
    """Steps the environments from Python. The phase `env_step` has the steps alone; episodes are counted, but not reported."""

    def __init__(self, algorithm: Algorithm, environments: VectorEnvironment, learner: Learner, run: Run) -> None:
        self._environments, self._run, self._total = environments, run, algorithm.settings.total_steps
        self._drawn = Drawn(algorithm, run)
        self.act: Act = learner.act
        self.step = self.episodes = 0
        self._rewards = 0.0
        # Processes start, and memory is touched for the first time, before the first step that is measured.
        environments.reset(start_seeds(run, 0, environments.count))
        environments.step(np.zeros(environments.count, np.int64))

    def advance(self, until: int, stop: Callable[[], bool]) -> bool:
        switch, environments = self._run.clock.switch, self._environments
        if self.step < until:
            environments.reset(start_seeds(self._run, self.step, environments.count))
        while self.step < until:
            if stop():
                return False
            switch("act")
            for actions in self._drawn.rollout():
                switch("env_step")
                found = environments.step(actions)
                switch("other")
                self._rewards += float(found.rewards.sum())
                self.episodes += int(np.count_nonzero(found.ended))
                self.step += environments.count
            self._run.reporter.progress(self.step, self._total)
        return True

    def measures(self) -> dict[str, float]:
        """Return the mean reward of a step."""
        return {"reward": self._rewards / self.step} if self.step else {}

    def moments(self) -> None:
        """Return None: observations are not normalised."""

    def close(self) -> None:
        self._environments.close()

    def state(self) -> tuple[NamedArrays, dict[str, Any]]:
        return {}, {"drawn": self._drawn.state(), "rewards": self._rewards}

    def load_state(self, arrays: NamedArrays, facts: dict[str, Any]) -> None:
        self._drawn.load_state(facts["drawn"])
        self._rewards = facts["rewards"]


def make_loop(
    algorithm: Algorithm, implementation: object, make_environment: Callable[[], Any], learner: Learner, run: Run
) -> SteppingLoop:
    """Return the loop, with environments that have been stepped."""
    settings = algorithm.settings
    return SteppingLoop(
        algorithm, make_vector(settings.stepping, make_environment, settings.environments), learner, run
    )
