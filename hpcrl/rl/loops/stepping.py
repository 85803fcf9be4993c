"""The loop that only steps environments: random actions are drawn before, and nothing is learnt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcrl.rl.interfaces import Algorithm, Learner, VectorEnvironment
from hpcrl.rl.runs import Run
from hpcrl.rl.stepped import Counted, start_seeds
from hpcrl.rl.vector.make import make_vector


class SteppingLoop(Counted):
    """Steps the environments from Python. The phase `env_step` has the steps alone; episodes are counted, but not reported."""

    def __init__(self, algorithm: Algorithm, environments: VectorEnvironment, learner: Learner, run: Run) -> None:
        super().__init__(algorithm, learner, run)
        self._environments = environments
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
                transitions = environments.step(actions)
                switch("other")
                self._rewards += float(transitions.rewards.sum())
                self.episodes += int(np.count_nonzero(transitions.ended))
                self.step += environments.count
            self._run.reporter.progress(self.step, self._total)
        return True

    def close(self) -> None:
        self._environments.close()


def make_loop(
    algorithm: Algorithm, implementation: object, make_environment: Callable[[], Any], learner: Learner, run: Run
) -> SteppingLoop:
    """Return the loop, with environments that have been stepped."""
    settings = algorithm.settings
    environments = make_vector(settings.stepping, make_environment, settings.environments, settings.workers)
    return SteppingLoop(algorithm, environments, learner, run)
