"""The loop of off-policy algorithms in Python: one process explores and learns in turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcrl.catalogue.training import is_over
from hpcrl.rl.checkpoint import NamedArrays
from hpcrl.rl.interfaces import Act, Algorithm, Learner
from hpcrl.rl.loops.acting import make_actor
from hpcrl.rl.loops.exploring import Explorer
from hpcrl.rl.loops.updating import Updates, warm_up
from hpcrl.rl.runs import Run


class OffPolicyLoop:
    """For every framework. `step` counts the environment steps of all ranks; each rank has its own environment and replay."""

    def __init__(self, algorithm: Algorithm, implementation: Any, environment: Any, learner: Learner, run: Run) -> None:
        self._settings, self._ranks = algorithm.settings, run.ranks
        self._actor = make_actor(learner, algorithm)
        self.act: Act = self._actor.act
        self._updates = Updates(algorithm, implementation, learner, run, self._actor.refresh)
        self._explorer = Explorer(
            algorithm, implementation, environment, self._actor, run, self._updates.memory.add, run.reporter.episode,
            run.rank, run.ranks,
        )  # fmt: skip

    @property
    def step(self) -> int:
        return self._explorer.step

    @step.setter
    def step(self, step: int) -> None:
        self._explorer.step = step

    @property
    def episodes(self) -> int:
        return self._explorer.episodes

    @episodes.setter
    def episodes(self, episodes: int) -> None:
        self._explorer.episodes = episodes

    def advance(self, until: int, stop: Callable[[], bool]) -> bool:
        explorer, settings = self._explorer, self._settings
        explore = self._explore_episodes if settings.train_unit == "episodes" else self._explore_steps
        while explorer.step < until and not is_over(settings, explorer.step, explorer.episodes):
            before = explorer.step
            is_due = explore(until, stop)
            self._updates.sync(before, explorer.step)
            if is_due is None:
                return False
            if is_due and explorer.step >= settings.learning_starts:
                self._updates.learn(explorer.step)
        return True

    def _explore_steps(self, until: int, stop: Callable[[], bool]) -> bool | None:
        """Explore at most to the end of the interval, and tell whether it was reached; None if `stop` ended it earlier."""
        explorer, interval = self._explorer, self._settings.train_interval
        if not explorer.advance(min(until, (explorer.step // interval + 1) * interval), stop):
            return None
        # Each rank sees only its own steps: an interval ends when a multiple of it was passed.
        return bool(explorer.step % interval < self._ranks)

    def _explore_episodes(self, until: int, stop: Callable[[], bool]) -> bool | None:
        """Do the same where intervals are counted in episodes."""
        explorer, settings = self._explorer, self._settings
        ended, end = explorer.episodes, (explorer.episodes // settings.train_interval + 1) * settings.train_interval
        if not explorer.advance(until, stop, min(end, settings.total_episodes or end)):
            return None
        return bool(ended < explorer.episodes == end)

    def measures(self) -> dict[str, float]:
        return self._updates.measures()

    def close(self) -> None:
        """Do nothing: there are no processes."""

    def state(self) -> tuple[NamedArrays, dict[str, Any]]:
        arrays, facts = self._updates.state()
        return arrays, facts | {"explore": self._explorer.state()}

    def load_state(self, arrays: NamedArrays, facts: dict[str, Any]) -> None:
        self._updates.load_state(arrays, facts)
        self._explorer.load_state(facts["explore"])
        self._actor.refresh()


def make_loop(
    algorithm: Algorithm, implementation: Any, make_environment: Callable[[], Any], learner: Learner, run: Run
) -> OffPolicyLoop:
    """Return the loop, with a learner that has compiled all of its programs."""
    warm_up(algorithm, implementation, learner, run)
    return OffPolicyLoop(algorithm, implementation, make_environment(), learner, run)
