"""The loop that only steps environments, as one compiled program: the steps of a rollout are one scan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hpcrl.rl.interfaces import Algorithm, Learner
from hpcrl.rl.runs import Run
from hpcrl.rl.stepped import Counted, start_seeds
from hpcrl.rl.vector.compiled import PureEnvironments, State

Kept = tuple[jax.Array, jax.Array, jax.Array]


def rollout(pure: PureEnvironments, state: State, actions: jax.Array) -> tuple[State, Kept]:
    """Take a step for each row of actions (steps, n).

    Return the state, and of each step the rewards, whether episodes terminated and whether they ended, (steps, n) each. The compiler
    removes every computation of which nothing is returned.
    """

    def step(state: State, chosen: jax.Array) -> tuple[State, Kept]:
        state, transitions = pure.step(state, chosen)
        return state, (transitions.rewards, transitions.terminated, transitions.ended)

    return jax.lax.scan(step, state, actions)


class FusedLoop(Counted):
    """Advances by one compiled call per rollout, which the phase `fused` has alone: it ends when all results are there."""

    def __init__(self, algorithm: Algorithm, environment: Any, learner: Learner, run: Run) -> None:
        super().__init__(algorithm, learner, run)
        settings = algorithm.settings
        self._count = settings.environments
        self._pure = PureEnvironments(environment)
        state = self._pure.reset(start_seeds(run, 0, self._count))
        actions = jnp.zeros((settings.rollout_steps, self._count), jnp.int32)
        # Compiled beforehand and called once, so that a measured call contains no compilation.
        program = jax.jit(lambda state, actions: rollout(self._pure, state, actions), donate_argnums=0)
        self._program = program.lower(state, actions).compile()
        jax.block_until_ready(self._program(state, actions))

    def advance(self, until: int, stop: Callable[[], bool]) -> bool:
        switch = self._run.clock.switch
        if self.step < until:
            state = self._pure.reset(start_seeds(self._run, self.step, self._count))
        while self.step < until:
            if stop():
                return False
            switch("act")
            drawn = self._drawn.rollout()
            switch("transfer")
            state, actions = jax.block_until_ready((state, jnp.asarray(drawn, jnp.int32)))
            switch("fused")
            state, kept = jax.block_until_ready(self._program(state, actions))
            switch("other")
            rewards, _, ended = (np.asarray(array) for array in kept)
            self._rewards += float(rewards.sum(dtype=np.float64))
            self.episodes += int(np.count_nonzero(ended))
            self.step += drawn.size
            self._run.reporter.progress(self.step, self._total)
        return True

    def close(self) -> None:
        """Do nothing: there are no processes."""


def make_loop(
    algorithm: Algorithm, implementation: object, make_environment: Callable[[], Any], learner: Learner, run: Run
) -> FusedLoop:
    """Return the compiled loop."""
    return FusedLoop(algorithm, make_environment(), learner, run)
