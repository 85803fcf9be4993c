"""DQN's replay and exploration inside the compiled loop: those of hpcrl.rl.replay.uniform and hpcrl.rl.algorithms.dqn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hpcrl.rl.envs.jax.world import World
from hpcrl.rl.frameworks.jax.core import Learner
from hpcrl.rl.frameworks.jax.schedules import schedule

Memory = dict[str, jax.Array]


class Transitions(NamedTuple):
    """What the ring stores, cut from its rows; the first axes are those of the rows."""

    observations: jax.Array
    following: jax.Array
    actions: jax.Array
    rewards: jax.Array
    terminated: jax.Array
    ended: jax.Array


def empty(world: World, settings: Any) -> tuple[Memory, Memory]:
    """Return the empty ring of `buffer_size` transitions, and no scores. A row has a transition: it is written and read at once."""
    return {"rows": jnp.zeros((settings.buffer_size, 2 * world.inputs + 4))}, {}


def added(settings: Any, stored: Memory, scores: Memory, happened: Any) -> tuple[Memory, Memory]:
    """Store a transition over the oldest."""
    numbers = (happened.action, happened.reward, happened.terminated, happened.ended)
    parts = [happened.observation, happened.following, jnp.stack([jnp.float32(number) for number in numbers])]
    return {"rows": stored["rows"].at[happened.place].set(jnp.concatenate(parts))}, scores


def cut(rows: jax.Array) -> Transitions:
    """Return the transitions of rows (..., width)."""
    inputs = (rows.shape[-1] - 4) // 2
    observations, following, action, reward, terminated, ended = jnp.split(
        rows, [inputs, *(2 * inputs + number for number in range(4))], axis=-1
    )
    others = [column.squeeze(-1) for column in (action, reward, terminated, ended)]
    return Transitions(observations, following, others[0].astype(jnp.int32), *others[1:])


def draws(settings: Any, key: jax.Array, step: jax.Array) -> jax.Array:
    """Return the random numbers of the updates of an interval: places (updates, batch)."""
    shape = (settings.updates, settings.batch_size)
    return jax.random.randint(key, shape, 0, jnp.minimum(step, settings.buffer_size))


def sample(learner: Learner, stored: Memory, scores: Memory, drawn: jax.Array, step: jax.Array) -> Any:
    """Return the batch of an update, and its places."""
    found = cut(stored["rows"][drawn])
    return (found.observations, found.actions, found.rewards, found.following, found.terminated), drawn


def prioritized(settings: Any, scores: Memory, chosen: jax.Array, aux: Any) -> Memory:
    """Return the scores after an update: all transitions are equally likely."""
    return scores


def measures(scores: Memory) -> dict[str, float]:
    """Return nothing: the loss returns only itself."""
    return {}


def epsilon(settings: Any, step: jax.Array) -> jax.Array:
    """Return the probability of a random action."""
    exploring = settings.exploration_fraction * settings.total_steps
    return schedule(settings.initial_epsilon, settings.final_epsilon, exploring, step)


def policy(learner: Learner, vector: jax.Array) -> Callable[[Any, jax.Array], jax.Array]:
    """Return the greedy action's choice by the loop's state and step, for steps that do not change the vector."""
    greedy = learner.policy("greedy", vector)
    return lambda own, step: greedy(own.state[None])[0].astype(jnp.int32)
