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
from hpcrl.rl.frameworks.jax.fused_rollout import Episodes, State, Transition, advantages, rollout
from hpcrl.rl.frameworks.jax.permuting import permutations
from hpcrl.rl.frameworks.jax.schedules import schedule
from hpcrl.rl.interfaces import Algorithm, Step
from hpcrl.rl.measures import Measures
from hpcrl.rl.normalization import Moments, centred, merged, moments_of, none_yet, scaled
from hpcrl.rl.rollout import Samples
from hpcrl.rl.runs import Run
from hpcrl.rl.schedules import rates_of


class Carry(NamedTuple):
    """Everything that a rollout reads and writes; the vectors and the optimiser's slots of each group are the learner's."""

    step: jax.Array | np.int32
    environments: State
    vectors: dict[str, jax.Array]
    slots: dict[str, Any]


Results = tuple[Episodes, tuple[jax.Array, ...]]

# Rollouts of a compiled call: between two calls Python costs as much as a fortieth of a small rollout, and asks whether to stop.
_TOGETHER = 16


class FusedLoop:
    """Advances by compiled calls of some rollouts each. `implementation` is the algorithm's module, which makes batches."""

    def __init__(self, learner: Learner, implementation: Any, environment: Any, run: Run) -> None:
        settings = learner.algorithm.settings
        self._learner, self._settings, self._reporter, self._clock = learner, settings, run.reporter, run.clock
        self.step = self.episodes = 0
        self.act = lambda observations: learner.act(self._shown(observations))
        world, limit = world_of(environment)
        key, first = jax.random.split(jax.random.key(run.seed))
        count = settings.environments
        self._environments = State(
            key=jax.random.key_data(key),
            observations=jax.vmap(world.reset)(jax.random.split(first, count)),
            values=jnp.zeros(count),
            lengths=jnp.zeros(count, jnp.int32),
            discounted=jnp.zeros(count),
            moments=jax.tree.map(jnp.asarray, {"observations": none_yet(world.inputs), "returns": none_yet()}),
        )
        self._measures = Measures(learner.algorithm.steps[-1].aux)
        program = jax.jit(partial(_rollouts, learner, implementation, world, limit), donate_argnums=0)
        # Compiled beforehand, so that training contains no compilation.
        self._program = program.lower(self._carry(), np.int32(1)).compile()
        for evaluated in (1, settings.evaluation_episodes):
            learner.act(np.zeros((evaluated, world.inputs), np.float32))

    def _carry(self) -> Carry:
        learner = self._learner
        return Carry(np.int32(self.step), self._environments, dict(learner.vectors), dict(learner.slots))

    def _shown(self, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return observations as the policy sees them."""
        moments = self.moments()
        shown: NDArray[np.float32] = observations if moments is None else centred(observations, moments)
        return shown

    def advance(self, until: int, stop: Callable[[], bool]) -> bool:
        environments = self._settings.environments
        size = environments * self._settings.rollout_steps
        while self.step < until:
            if stop():
                return False
            rollouts = min(_TOGETHER, -(-(until - self.step) // size))
            self._clock.switch("fused")
            carry, (episodes, aux) = self._program(self._carry(), np.int32(rollouts))
            jax.block_until_ready(carry)
            for one in zip(*(array[:rollouts] for array in self._learner.read(aux)), strict=True):
                self._measures.add(self._learner, one)
            self._clock.switch("other")
            self._environments = carry.environments
            self._learner.vectors.update(carry.vectors)
            self._learner.slots.update(carry.slots)
            ended, values, lengths = (np.asarray(array)[:rollouts].reshape(-1, environments) for array in episodes)
            for row, value, length in zip(
                np.nonzero(ended)[0].tolist(), values[ended].tolist(), lengths[ended].tolist(), strict=True
            ):
                self.episodes += 1
                self._reporter.episode(self.step + (row + 1) * environments, value, length)
            self.step += ended.size
            self._reporter.progress(self.step, self._settings.total_steps)
        return True

    def measures(self) -> dict[str, float]:
        return self._measures.means()

    def moments(self) -> Moments | None:
        if not self._settings.normalize_observations:
            return None
        moments: Moments = jax.tree.map(np.asarray, self._environments.moments["observations"])
        return moments

    def close(self) -> None:
        """Do nothing: there are no processes."""

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        leaves = jax.tree.leaves(self._environments)
        return {str(number): np.asarray(leaf) for number, leaf in enumerate(leaves)}, {}

    def load_state(self, arrays: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
        structure = jax.tree.structure(self._environments)
        leaves = [jnp.asarray(arrays[str(number)]) for number in range(len(arrays))]
        self._environments = jax.tree.unflatten(structure, leaves)


def _rollouts(
    learner: Learner, implementation: Any, world: World, limit: int, carry: Carry, count: jax.Array
) -> tuple[Carry, Results]:
    """Return what `count` rollouts and their updates lead to, and the results of each, in the first rows of arrays of `_TOGETHER`."""
    whole = partial(_rollout_and_updates, learner, implementation, world, limit)
    shapes = jax.eval_shape(whole, carry)[1]
    kept = jax.tree.map(lambda shape: jnp.zeros((_TOGETHER, *shape.shape), shape.dtype), shapes)

    def one(number: jax.Array, made: tuple[Carry, Results]) -> tuple[Carry, Results]:
        carry, results = whole(made[0])
        return carry, jax.tree.map(lambda array, result: array.at[number].set(result), made[1], results)

    made: tuple[Carry, Results] = jax.lax.fori_loop(0, count, one, (carry, kept))
    return made


def _rollout_and_updates(
    learner: Learner, implementation: Any, world: World, limit: int, carry: Carry
) -> tuple[Carry, Results]:
    """Return what a rollout and its updates lead to, the episodes, and the aux of the last minibatch."""
    algorithm, settings = learner.algorithm, learner.algorithm.settings
    key, exploring, permuting = jax.random.split(jax.random.wrap_key_data(carry.environments.key), 3)
    sampling = [carry.vectors[group] for group in (algorithm.acts_with, *algorithm.samples_with)]
    environments, (transitions, episodes) = rollout(learner, world, limit, sampling, carry.environments, exploring)
    moments = dict(carry.environments.moments)
    if settings.normalize_rewards:
        moments["returns"] = merged(moments["returns"], moments_of(transitions.discounted.reshape(-1)))
        transitions = transitions._replace(rewards=scaled(transitions.rewards, moments["returns"]))
    if settings.normalize_observations:
        rows = transitions.observations.reshape(-1, world.inputs)
        shown = centred(transitions.observations, moments["observations"])
        last = centred(transitions.last, moments["observations"])
        moments["observations"] = merged(moments["observations"], moments_of(rows))
        transitions = transitions._replace(observations=shown, last=last)
    following = _values_of_what_follows(learner, sampling, transitions)
    estimates = advantages(transitions, following, settings.gamma, settings.gae_lambda)
    gains = estimates
    if settings.returns_lambda != settings.gae_lambda:
        gains = advantages(transitions, following, settings.gamma, settings.returns_lambda)
    whole = (
        transitions.observations, transitions.actions, transitions.logs, estimates, gains + transitions.values,
        transitions.values,
    )  # fmt: skip
    flat: list[Any] = [array.reshape(-1, *array.shape[2:]) for array in whole]

    def at(start: float, end: float) -> jax.Array:
        return schedule(start, end, settings.total_steps, carry.step)

    rates = [at(*rates_of(gradient_step, settings)) for gradient_step in algorithm.steps]

    def one(parts: tuple[Any, Any], chosen: jax.Array) -> tuple[tuple[Any, Any], Any]:
        vectors, slots = dict(parts[0]), dict(parts[1])
        samples = Samples(*(array[chosen] for array in flat))
        if settings.normalize_advantages:
            gains = samples.advantages
            samples = samples._replace(advantages=(gains - gains.mean()) / (gains.std() + 1e-8))
        batch = implementation.batch(samples, settings, at)
        for gradient_step, rate in zip(algorithm.steps, rates, strict=True):
            group, constants = gradient_step.group, [vectors[name] for name in gradient_step.uses]
            own = (vectors[group], slots[group])
            vectors[group], slots[group], aux = _learn(learner, gradient_step, own, constants, batch, rate)
        return (vectors, slots), aux

    size = transitions.rewards.size
    orders = permutations(permuting, settings.epochs, size)
    (vectors, slots), aux = jax.lax.scan(one, (carry.vectors, carry.slots), orders.reshape(-1, settings.minibatch_size))
    environments = environments._replace(key=jax.random.key_data(key), moments=moments)
    carry = Carry(carry.step + size, environments, vectors, slots)
    return carry, (episodes, tuple(array[-1] for array in aux))


def _learn(
    learner: Learner, step: Step, own: tuple[jax.Array, Any], constants: list[jax.Array], batch: Any, rate: jax.Array
) -> tuple[jax.Array, Any, tuple[jax.Array, ...]]:
    """Take a step of the algorithm on a batch; return the group's vector and slots, and the aux of a single gradient step."""
    update = learner.pure_updates[step.name]
    if step.times == 1:
        vector, slots, aux = update(*own, constants, batch, rate)
        return vector, slots, aux
    return *jax.lax.fori_loop(0, step.times, lambda _, own: update(*own, constants, batch, rate)[:2], own), ()


def _values_of_what_follows(learner: Learner, sampling: list[jax.Array], transitions: Transition) -> jax.Array:
    """Return the values (steps, n) of the observations that the steps led to.

    The next row has them, but for the last row, and where an episode was cut off, which not every rollout has.
    """

    def values(observations: jax.Array) -> jax.Array:
        rows = observations.reshape(-1, observations.shape[-1])
        silence = jnp.zeros((len(rows), learner.algorithm.space.actions))
        estimates: jax.Array = learner.pure_sample(*sampling, rows, silence)[2]
        return estimates.reshape(observations.shape[:-1])

    cut = transitions.ended & ~transitions.terminated
    next_rows = jnp.concatenate([transitions.values[1:], values(transitions.last[-1:])])
    return jax.lax.cond(cut.any(), lambda: jnp.where(cut, values(transitions.last), next_rows), lambda: next_rows)


def make_loop(
    algorithm: Algorithm, implementation: Any, make_environment: Callable[[], Any], learner: Learner, run: Run
) -> FusedLoop:
    """Return the compiled loop."""
    return FusedLoop(learner, implementation, make_environment(), run)
