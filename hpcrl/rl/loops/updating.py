"""The learner's part of off-policy algorithms: the replay, and the updates of each interval."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcrl.rl.checkpoint import NamedArrays
from hpcrl.rl.distributed.agreement import any_rank
from hpcrl.rl.interfaces import Algorithm, Arrays, Learner, Memory
from hpcrl.rl.loops.acting import FrameworkActor
from hpcrl.rl.loops.warming import restored
from hpcrl.rl.measures import Measures
from hpcrl.rl.runs import Run
from hpcrl.rl.schedules import rate_of

_STACKED_BYTES = 2**25


class Updates:
    """The updates of a learner from its memory. `refreshed` is called after the updates of each interval. `taken` counts the batches so far."""

    def __init__(
        self, algorithm: Algorithm, implementation: Any, learner: Learner, run: Run, refreshed: Callable[[], None]
    ) -> None:
        self._algorithm, self._settings, self._learner, self._run = algorithm, algorithm.settings, learner, run
        self._clock, self._refreshed = run.clock, refreshed
        self._draw = np.random.default_rng([run.seed, 2, *([run.rank] if run.rank else [])])
        self.memory: Memory = implementation.memory(algorithm, max(1, self._settings.buffer_size // run.ranks), run)
        self.taken = 0
        self._measures = Measures(algorithm.steps[-1].aux[1:])  # the first are the losses themselves: priorities
        self._share = self._settings.batch_size // run.ranks
        self._waits = not getattr(self._settings, "unsynchronized", False)
        self._stacks = _stacks(algorithm, self.memory, self._share)
        self._burst = learner.burst if self._stacks and _can_burst(algorithm) else None

    def sync(self, before: int, step: int) -> None:
        """Move the target copies as often as is due between two environment steps."""
        if self._algorithm.sync_unit != "steps":
            return
        every, share = self._algorithm.sync_every, self._algorithm.sync_share
        times = step // every - before // every
        for _ in range(min(times, 1) if share == 1.0 else times):
            self._sync()

    def learn(self, step: int) -> None:
        """Take the updates of one interval, which ends at an environment step; none if a rank has nothing to learn from yet.

        That is so after a checkpoint that came before the first update: it has no windows that were not complete.
        """
        if self.taken == 0 and any_rank(self._run.collective, not self.memory.size):
            return
        settings, learner, memory, switch = self._settings, self._learner, self.memory, self._clock.switch
        rates = {gradient_step.name: rate_of(gradient_step, settings, step) for gradient_step in self._algorithm.steps}
        if self._stacks:
            switch("replay")
            batches = memory.sample_many(settings.updates, self._share, self._draw, step)
        if self._burst:
            switch("transfer")
            transferred = learner.transfer(batches)
            switch("update")
            ((name, rate),) = rates.items()
            aux = self._burst(name, transferred, rate)
            self.taken += settings.updates
        else:
            for number in range(settings.updates):
                if not self._stacks:
                    switch("replay")
                    sampled = memory.sample(self._share, self._draw, step)
                switch("transfer")
                one = tuple(array[number] for array in batches) if self._stacks else sampled
                aux = self._update(one, rates)
                if self._algorithm.sync_unit == "updates" and (number + 1) % self._algorithm.sync_every == 0:
                    self._sync()
        if self._waits:
            learner.synchronize()
        self._refreshed()
        if self._waits:
            self._measures.add(learner, aux)
        switch("other")
        self._run.reporter.progress(step, settings.total_steps)

    def _update(self, sampled: Arrays, rates: dict[str, float]) -> Any:
        """Take the gradient steps of an update at their learning rates; return the aux of the last."""
        switch, learner, memory = self._clock.switch, self._learner, self.memory
        batch = learner.transfer(sampled)
        switch("update")
        for _ in range(self._settings.epochs):
            for gradient_step in self._algorithm.steps:
                if self.taken % gradient_step.every:
                    continue
                aux = learner.update(gradient_step.name, batch, rates[gradient_step.name])
                if gradient_step.name == self._algorithm.sync_unit:
                    self._sync()
        self.taken += 1
        if self._run.precise_phases and self._waits:
            learner.synchronize()
        if memory.prioritized:
            losses = learner.read(aux)[0]  # waits for the update, so it belongs to its phase
            with self._clock.aside("replay"):
                memory.prioritize(losses)
        return aux

    def _sync(self) -> None:
        """Move the target copies once."""
        for target in self._algorithm.targets:
            self._learner.sync(target, self._algorithm.sync_share)

    def measures(self) -> dict[str, float]:
        return self._measures.means()

    def state(self) -> tuple[NamedArrays, dict[str, Any]]:
        """Return arrays and plain facts for a checkpoint."""
        facts = {"draw": self._draw.bit_generator.state, "memory": self.memory.facts(), "taken": self.taken}
        return self.memory.state(), facts

    def load_state(self, arrays: NamedArrays, facts: dict[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        self.memory.load_state(arrays)
        self.memory.load_facts(facts["memory"])
        self._draw.bit_generator.state = facts["draw"]
        self.taken = facts["taken"]


def _stacks(algorithm: Algorithm, memory: Memory, share: int) -> bool:
    """Tell whether the batches of an interval are drawn together: no loss changes the draws, and they need little memory."""
    value = np.dtype(algorithm.space.dtype).itemsize
    size = 2 * value * algorithm.space.inputs * share * algorithm.settings.updates  # bytes of observations
    return not memory.prioritized and algorithm.settings.updates > 1 and size <= _STACKED_BYTES


def _can_burst(algorithm: Algorithm) -> bool:
    """Tell whether the updates of an interval are nothing but the same gradient step on batch after batch."""
    return algorithm.has_one_step and algorithm.sync_unit == "steps" and algorithm.settings.epochs == 1


def warm_up(algorithm: Algorithm, implementation: Any, learner: Learner, run: Run, environments: int = 1) -> None:
    """Call every compiled shape of a learner once, and restore its state. It acts in so many `environments` at once."""
    with restored(learner):
        if algorithm.settings.acting == "framework":
            warm_up_acting(algorithm, implementation, learner, environments)
        _warm_up_updates(algorithm, implementation, learner, run)


def warm_up_acting(algorithm: Algorithm, implementation: Any, learner: Learner, environments: int = 1) -> None:
    """Call every compiled shape of acting once."""
    settings, nothing = algorithm.settings, np.zeros(algorithm.space.inputs, algorithm.space.dtype)
    learner.act(np.zeros((settings.evaluation_episodes, algorithm.space.inputs), algorithm.space.dtype))
    learner.act(nothing.reshape(1, -1))
    given = algorithm, FrameworkActor(learner, algorithm), np.random.default_rng(0), lambda phase: None
    if environments > 1:
        shown = np.zeros((environments, algorithm.space.inputs), algorithm.space.dtype)
        implementation.many_chooser(*given)(shown, settings.total_steps)
    else:
        implementation.chooser(*given)(nothing, settings.total_steps, 0)


def _warm_up_updates(algorithm: Algorithm, implementation: Any, learner: Learner, run: Run) -> None:
    settings, nothing = algorithm.settings, np.zeros(algorithm.space.inputs, algorithm.space.dtype)
    draw = np.random.default_rng(0)
    memory = implementation.memory(algorithm, 1, run)
    memory.add(nothing, 0, 0.0, nothing, False, True)
    share = settings.batch_size // run.ranks
    if learner.burst and _can_burst(algorithm) and _stacks(algorithm, memory, share):
        batches = learner.transfer(memory.sample_many(settings.updates, share, draw))
        learner.burst(algorithm.steps[0].name, batches, settings.learning_rate)
    else:
        batch = learner.transfer(memory.sample(share, draw))
        for gradient_step in algorithm.steps:
            learner.update(gradient_step.name, batch, settings.learning_rate)
    for target in algorithm.targets:
        learner.sync(target, algorithm.sync_share)
