"""DQN's replay and exploration inside the compiled loop: those of hpcrl.rl.replay.uniform and hpcrl.rl.algorithms.dqn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from hpcrl.rl.envs.jax.world import World
from hpcrl.rl.frameworks.jax.core import Learner
from hpcrl.rl.frameworks.jax.schedules import schedule

Memory = dict[str, jax.Array]
_BATCH = ("observations", "actions", "rewards", "following", "terminated")


def empty(world: World, settings: Any) -> tuple[Memory, Memory]:
    """Return the empty rings of `buffer_size` transitions, and no scores."""
    capacity = settings.buffer_size
    observations = {name: jnp.zeros((capacity, world.inputs)) for name in ("observations", "following")}
    numbers = {name: jnp.zeros(capacity) for name in ("rewards", "terminated")}
    return {**observations, **numbers, "actions": jnp.zeros(capacity, jnp.int32)}, {}


def added(settings: Any, stored: Memory, scores: Memory, happened: Any) -> tuple[Memory, Memory]:
    """Store a transition over the oldest."""
    place = happened.place
    return {
        "observations": stored["observations"].at[place].set(happened.observation),
        "actions": stored["actions"].at[place].set(happened.action),
        "rewards": stored["rewards"].at[place].set(happened.reward),
        "following": stored["following"].at[place].set(happened.following),
        "terminated": stored["terminated"].at[place].set(happened.terminated.astype(jnp.float32)),
    }, scores


def draws(settings: Any, key: jax.Array, step: jax.Array) -> jax.Array:
    """Return the random numbers of the updates of an interval: places (updates, batch)."""
    shape = (settings.updates, settings.batch_size)
    return jax.random.randint(key, shape, 0, jnp.minimum(step, settings.buffer_size))


def sample(learner: Learner, stored: Memory, scores: Memory, drawn: jax.Array, step: jax.Array) -> Any:
    """Return the batch of an update, and its places."""
    return tuple(stored[name][drawn] for name in _BATCH), drawn


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
