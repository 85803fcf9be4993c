"""The loop of off-policy algorithms in Python: one process explores and learns in turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcrl.catalogue.training import has_many, is_over
from hpcrl.rl.checkpoint import NamedArrays
from hpcrl.rl.interfaces import Act, Algorithm, Learner, VectorEnvironment
from hpcrl.rl.loops.acting import make_actor
from hpcrl.rl.loops.exploring import Explorer
from hpcrl.rl.loops.exploring_many import ManyExplorer
from hpcrl.rl.loops.updating import Updates, warm_up
from hpcrl.rl.runs import Run
from hpcrl.rl.vector.make import make_vector


class OffPolicyLoop:
    """For every framework. `step` counts the environment steps of all ranks; each rank has its own replay, and its own environment,
    or its share of `many` that step together."""

    def __init__(
        self,
        algorithm: Algorithm,
        implementation: Any,
        environment: Any,
        learner: Learner,
        run: Run,
        many: VectorEnvironment | None = None,
    ) -> None:
        self._settings = algorithm.settings
        self._actor = make_actor(learner, algorithm)
        self.act: Act = self._actor.act
        self._updates = Updates(algorithm, implementation, learner, run, self._actor.refresh)
        memory: Any = self._updates.memory
        self._explorer = (
            Explorer(
                algorithm, implementation, environment, self._actor, run, memory.add, run.reporter.episode, run.rank, run.ranks
            )
            if many is None
            else ManyExplorer(
                algorithm, implementation, many, self._actor, run, memory.add_many, run.reporter.episode
            )
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
        # Several ranks and environments step together: an interval ends when a multiple of it was reached or passed.
        return bool(explorer.step % interval < explorer.stride)

    def _explore_episodes(self, until: int, stop: Callable[[], bool]) -> bool | None:
        """Do the same where intervals are counted in episodes."""
        explorer, settings = self._explorer, self._settings
        ended, end = explorer.episodes, (explorer.episodes // settings.train_interval + 1) * settings.train_interval
        if not explorer.advance(until, stop, min(end, settings.total_episodes or end)):
            return None
        return bool(ended < explorer.episodes == end)

    @property
    def updates(self) -> int:
        """Return the number of batches that the learner has learned from."""
        return self._updates.taken

    def measures(self) -> dict[str, float]:
        return self._updates.measures()

    def moments(self) -> None:
        """Return None: observations are not normalised."""

    def close(self) -> None:
        self._explorer.close()

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
    settings = algorithm.settings
    many = None
    if has_many(settings):
        # Before the learner computes anything: processes of environments should not inherit its threads.
        many = make_vector(settings.stepping, make_environment, settings.environments // run.ranks, settings.workers)
    warm_up(algorithm, implementation, learner, run, many.count if many else 1)
    return OffPolicyLoop(algorithm, implementation, None if many else make_environment(), learner, run, many)
