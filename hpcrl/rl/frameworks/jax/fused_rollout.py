"""A rollout of several environments and its advantages, as pure functions for the compiled on-policy loop."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from hpcrl.rl.envs.jax.world import World
from hpcrl.rl.frameworks.jax.core import Learner
from hpcrl.rl.normalization import Moments, centred


class State(NamedTuple):
    """The environments between two steps: random key, observations (n, inputs), the episodes' returns, lengths and
    discounted returns (n,), and the moments of observations and of discounted returns."""

    key: jax.Array
    observations: jax.Array
    values: jax.Array
    lengths: jax.Array
    discounted: jax.Array
    moments: dict[str, Moments]


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
    discounted: jax.Array


class Episodes(NamedTuple):
    """For each step and environment whether an episode ended there, its return and its length."""

    ended: jax.Array
    values: jax.Array
    lengths: jax.Array


def rollout(
    learner: Learner, world: World, limit: int, vectors: list[jax.Array], environments: State, key: jax.Array
) -> tuple[State, tuple[Transition, Episodes]]:
    """Take the steps of one rollout with one policy; `vectors` are those of the groups that it samples with."""
    settings = learner.algorithm.settings
    count, steps = settings.environments, settings.rollout_steps
    sample = learner.policy("sample", *vectors)
    none = jnp.zeros(count)

    def step(state: State, drawn: tuple[jax.Array, jax.Array]) -> tuple[State, tuple[Transition, Episodes]]:
        noise, starts = drawn
        shown = state.observations
        if settings.normalize_observations:
            shown = centred(shown, state.moments["observations"])
        actions, logs, _ = sample(shown, noise)
        last, rewards, terminated = jax.vmap(world.step)(state.observations, actions)
        returns, lengths = state.values + rewards, state.lengths + 1
        ended = terminated | (lengths >= limit)
        discounted = settings.gamma * state.discounted + rewards
        transition = Transition(state.observations, actions, logs, none, rewards, terminated, ended, last, discounted)
        state = state._replace(
            observations=jnp.where(ended[:, None], starts, last),
            values=jnp.where(ended, 0.0, returns),
            lengths=jnp.where(ended, 0, lengths),
            discounted=jnp.where(ended, 0.0, discounted),
        )
        return state, (transition, Episodes(ended, returns, lengths))

    # Drawn for all steps at once: with one key per step, the random numbers would cost more than the environments.
    exploring, resets = jax.random.split(key)
    space = learner.algorithm.space
    draw = jax.random.normal if space.continuous else jax.random.gumbel
    noise = draw(exploring, (steps, count, space.actions))
    starts = jax.vmap(world.reset)(jax.random.split(resets, steps * count)).reshape(steps, count, -1)
    # Unrolled, because the compiler's loop costs half a microsecond per turn.
    environments, (transitions, episodes) = jax.lax.scan(step, environments, (noise, starts), unroll=4)
    # The values of all steps at once: the compiler leaves their network out of the scan.
    shown = transitions.observations
    if settings.normalize_observations:
        shown = centred(shown, environments.moments["observations"])
    values = sample(shown.reshape(steps * count, -1), noise.reshape(steps * count, -1))[2]
    return environments, (transitions._replace(values=values.reshape(steps, count)), episodes)


def advantages(transitions: Transition, following: jax.Array, gamma: float, gae_lambda: float) -> jax.Array:
    """Return the estimates of hpcrl.rl.rollout.advantages; `following` are the values of what each step led to."""
    terminated, ended = (array.astype(jnp.float32) for array in (transitions.terminated, transitions.ended))
    deltas = transitions.rewards + gamma * (1 - terminated) * following - transitions.values

    def back(accumulated: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        delta, over = row
        accumulated = delta + gamma * gae_lambda * (1 - over) * accumulated
        return accumulated, accumulated

    _, estimates = jax.lax.scan(back, jnp.zeros_like(deltas[0]), (deltas, ended), reverse=True)
    return estimates
