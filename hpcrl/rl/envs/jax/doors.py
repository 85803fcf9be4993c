"""Doors as pure JAX functions: the transitions of :mod:`hpcrl.rl.envs.doors`, from the same tables and so equal bit for bit.

Starts come from JAX's keys. The columns of agent and goal have a key each.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from hpcrl.rl.envs.doors import AGENT, FREE, GOAL, MOVES, field
from hpcrl.rl.envs.jax.world import World


def world(size: int = 15, doors: int = 3, same_column: bool = False, reward_bumping: bool = False) -> World:
    """Return Doors with these options. A state is the flat grid (size^2,), in float32."""
    made = field(size, doors)
    places, first_row = jnp.arange(size**2), size * (size - 1)
    rewarded = made.tried if reward_bumping else made.after

    def reset(key: jax.Array) -> jax.Array:
        agent_key, goal_key = jax.random.split(key)
        agent = jax.random.randint(agent_key, (), 0, size)
        goal = agent if same_column else jax.random.randint(goal_key, (), 0, size)
        return start(agent, goal)

    def start(agent: jax.Array, goal: jax.Array) -> jax.Array:
        grid = jnp.where(places == goal, GOAL, jnp.asarray(made.cells, jnp.float32))
        return jnp.where(places == first_row + agent, float(AGENT), grid)

    def step(state: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        # One cell each: a sum finds it faster than argmax.
        place = jnp.where(state == AGENT, places, 0).sum()
        goal = jnp.where(state[:size] == GOAL, places[:size], 0).sum()
        after = jnp.asarray(made.after)[place, action]
        distances = jnp.asarray(made.distances)
        reward = distances[place, goal] - distances[jnp.asarray(rewarded)[place, action], goal]
        grid = jnp.where(places == place, float(FREE), state)
        return jnp.where(places == after, float(AGENT), grid), reward, after == goal

    return World(size**2, len(MOVES), reset, step)


WORLDS = {"Doors-v0": world}
