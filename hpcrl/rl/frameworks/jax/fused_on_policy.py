"""The on-policy loop with the environments inside: a rollout, its advantages and its updates in one compiled program.

The same algorithm, schedules and initial weights as hpcrl.rl.loops.on_policy. Noise, permutations and environments draw
from JAX's random keys, so the run of a seed differs from that of the other modes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from hpcrl.rl.envs.jax.registry import world_of
from hpcrl.rl.envs.jax.world import World
from hpcrl.rl.frameworks.jax.core import Learner
from hpcrl.rl.frameworks.jax.schedules import schedule
from hpcrl.rl.interfaces import Algorithm
from hpcrl.rl.runs import Run


class State(NamedTuple):
    """The environments between two steps: random key, observations (n, inputs), and the episodes' returns and lengths (n,)."""

    key: jax.Array
    observations: jax.Array
    values: jax.Array
    lengths: jax.Array


class Carry(NamedTuple):
    """Everything that a rollout reads and writes; `vector` and `slots` are the learner's."""

    step: jax.Array
    environments: State
    vector: jax.Array
    slots: Any


class Transition(NamedTuple):
    """A step of n environments; `last` are the observations that it led to, before any reset."""

    observations: jax.Array
    actions: jax.Array
    logs: jax.Array
    values: jax.Array
    rewards: jax.Array
    terminated: jax.Array
    ended: jax.Array
    last: jax.Array


class Episodes(NamedTuple):
    """For each step and environment whether an episode ended there, its return and its length."""

    ended: jax.Array
    values: jax.Array
    lengths: jax.Array


class FusedLoop:
    """Advances by one compiled call per rollout. The algorithm has one step, without constants."""

    def __init__(self, learner: Learner, environment: Any, run: Run) -> None:
        settings = learner.algorithm.settings
        self._learner, self._settings, self._reporter, self._clock = learner, settings, run.reporter, run.clock
        self._group = learner.algorithm.acts_with
        self.step = self.episodes = 0
        self.act = learner.act
        world, limit = world_of(environment)
        key, first = jax.random.split(jax.random.key(run.seed))
        count = settings.environments
        self._environments = State(
            key=jax.random.key_data(key),
            observations=jax.vmap(world.reset)(jax.random.split(first, count)),
            values=jnp.zeros(count),
            lengths=jnp.zeros(count, jnp.int32),
        )
        program = jax.jit(partial(_rollout_and_updates, learner, world, limit), donate_argnums=0)
        # Compiled beforehand, so that training contains no compilation.
        self._program = program.lower(self._carry()).compile()
        for evaluated in (1, settings.evaluation_episodes):
            learner.act(np.zeros((evaluated, world.inputs), np.float32))

    def _carry(self) -> Carry:
        vector, slots = self._learner.vectors[self._group], self._learner.slots[self._group]
        return Carry(jnp.int32(self.step), self._environments, vector, slots)

    def advance(self, until: int, stop: Callable[[], bool]) -> bool:
        count = self._settings.environments
        while self.step < until:
            if stop():
                return False
            self._clock.switch("fused")
            carry, episodes = self._program(self._carry())
            jax.block_until_ready(carry)
            self._clock.switch("other")
            self._environments = carry.environments
            self._learner.vectors[self._group], self._learner.slots[self._group] = carry.vector, carry.slots
            ended, values, lengths = (np.asarray(array) for array in episodes)
            for row, place in zip(*np.nonzero(ended), strict=True):
                self.episodes += 1
                at = self.step + (int(row) + 1) * count
                self._reporter.episode(at, float(values[row, place]), int(lengths[row, place]))
            self.step += ended.size
            self._reporter.progress(self.step, self._settings.total_steps)
        return True

    def measures(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        """Do nothing: there are no processes."""

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        return {name: np.asarray(array) for name, array in self._environments._asdict().items()}, {}

    def load_state(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        self._environments = State(**{name: jnp.asarray(arrays[name]) for name in State._fields})


def _rollout_and_updates(learner: Learner, world: World, limit: int, carry: Carry) -> tuple[Carry, Episodes]:
    settings = learner.algorithm.settings
    (update,) = learner.pure_updates.values()
    key, exploring, permuting = jax.random.split(jax.random.wrap_key_data(carry.environments.key), 3)
    environments, (transitions, episodes) = _rollout(learner, world, limit, carry, exploring)
    last = transitions.last.reshape(-1, world.inputs)
    silence = jnp.zeros((len(last), world.actions))
    following = learner.pure_sample(carry.vector, last, silence)[2].reshape(transitions.rewards.shape)
    estimates = _advantages(transitions, following, settings.gamma, settings.gae_lambda)
    arrays = (
        transitions.observations, transitions.actions, transitions.logs, estimates, estimates + transitions.values,
        transitions.values,
    )  # fmt: skip
    flat = [array.reshape(-1, *array.shape[2:]) for array in arrays]
    rate = schedule(settings.learning_rate, settings.final_learning_rate, settings.total_steps, carry.step)
    clip = schedule(settings.clip_range, settings.final_clip_range, settings.total_steps, carry.step)[None]

    def one(parts: tuple[jax.Array, Any], chosen: jax.Array) -> tuple[tuple[jax.Array, Any], None]:
        observations, actions, logs, gains, returns, values = (array[chosen] for array in flat)
        if settings.normalize_advantages:
            gains = (gains - gains.mean()) / (gains.std() + 1e-8)
        vector, slots, _ = update(*parts, [], (observations, actions, logs, gains, returns, values, clip), rate)
        return (vector, slots), None

    size = transitions.rewards.size
    orders = jax.vmap(lambda key: jax.random.permutation(key, size))(jax.random.split(permuting, settings.epochs))
    (vector, slots), _ = jax.lax.scan(one, (carry.vector, carry.slots), orders.reshape(-1, settings.minibatch_size))
    environments = environments._replace(key=jax.random.key_data(key))
    return Carry(carry.step + size, environments, vector, slots), episodes


def _rollout(
    learner: Learner, world: World, limit: int, carry: Carry, key: jax.Array
) -> tuple[State, tuple[Transition, Episodes]]:
    """Take the steps of one rollout with one policy."""
    count, steps = learner.algorithm.settings.environments, learner.algorithm.settings.rollout_steps

    def step(state: State, drawn: tuple[jax.Array, jax.Array]) -> tuple[State, tuple[Transition, Episodes]]:
        noise, starts = drawn
        actions, logs, values = learner.pure_sample(carry.vector, state.observations, noise)
        last, rewards, terminated = jax.vmap(world.step)(state.observations, actions)
        returns, lengths = state.values + rewards, state.lengths + 1
        ended = terminated | (lengths >= limit)
        transition = Transition(state.observations, actions, logs, values, rewards, terminated, ended, last)
        state = State(
            key=state.key,
            observations=jnp.where(ended[:, None], starts, last),
            values=jnp.where(ended, 0.0, returns),
            lengths=jnp.where(ended, 0, lengths),
        )
        return state, (transition, Episodes(ended, returns, lengths))

    # Drawn for all steps at once: with one key per step, the random numbers would cost more than the environments.
    gumbel, resets = jax.random.split(key)
    noise = jax.random.gumbel(gumbel, (steps, count, world.actions))
    starts = jax.vmap(world.reset)(jax.random.split(resets, steps * count)).reshape(steps, count, -1)
    return jax.lax.scan(step, carry.environments, (noise, starts))


def _advantages(transitions: Transition, following: jax.Array, gamma: float, gae_lambda: float) -> jax.Array:
    """Return the estimates of hpcrl.rl.rollout.advantages; `following` are the values of what each step led to."""
    terminated, ended = (array.astype(jnp.float32) for array in (transitions.terminated, transitions.ended))
    deltas = transitions.rewards + gamma * (1 - terminated) * following - transitions.values

    def back(accumulated: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        delta, over = row
        accumulated = delta + gamma * gae_lambda * (1 - over) * accumulated
        return accumulated, accumulated

    _, estimates = jax.lax.scan(back, jnp.zeros_like(deltas[0]), (deltas, ended), reverse=True)
    return estimates


def make_loop(
    algorithm: Algorithm, implementation: object, make_environment: Callable[[], Any], learner: Learner, run: Run
) -> FusedLoop:
    """Return the compiled loop."""
    return FusedLoop(learner, make_environment(), run)
