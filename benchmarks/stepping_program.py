"""Run by benchmarks.stepping in an environment with JAX, gymnax and EnvPool: microseconds of a step of one environment, as JSON.

All loops step the same number of environments with the same actions, and reset those whose episode ends. Compiled loops return rewards, ends
and the sum of all observations of each step, so that the compiler can leave nothing out. Each loop is called once before it is measured; the
least of the rounds counts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import envpool
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnax.environments.environment import Environment, EnvParams, EnvState

from hpcrl.rl.envs.jax.registry import world_of
from hpcrl.rl.envs.make import gymnasium_environment
from hpcrl.rl.frameworks.jax import runtime
from hpcrl.rl.vector.compiled import PureEnvironments
from hpcrl.rl.vector.make import make_vector

STEPS, ROUNDS = 512, 7
LIMITS = {"CartPole-v1": None, "Doors-v0": 28}
SIDE = 15  # cells of a row and of a column of Doors
WAYS = {"CartPole-v1": ("compiled", "sync"), "Doors-v0": ("compiled", "arrays", "sync")}

Loop = tuple[Callable[[Any, jax.Array], Any], Any]  # the program and its first state


@struct.dataclass
class Played(EnvState):
    """The state of an environment of hpcrl and the steps of its episode."""

    state: jax.Array


class Ruled(Environment[Played, EnvParams]):
    """An environment of hpcrl as one of gymnax: the same rules, stepped and reset by gymnax."""

    def __init__(self, environment: Any) -> None:
        super().__init__()
        self._world, self._limit = world_of(environment)

    def step_env(self, key: Any, state: Played, action: Any, params: Any) -> Any:
        after, reward, terminated = self._world.step(state.state, action)
        return after, Played(time=state.time + 1, state=after), reward, terminated, {}

    def reset_env(self, key: Any, params: Any) -> Any:
        first = self._world.reset(key)
        return first, Played(time=0, state=first)

    def is_truncated(self, state: Played, params: Any) -> Any:
        return state.time >= self._limit


def ours(make: Callable[[], Any], count: int) -> Loop:
    """Return hpcrl's loop."""
    pure = PureEnvironments(make())

    def one(state: Any, chosen: jax.Array) -> Any:
        state, found = pure.step(state, chosen)
        return state, (found.rewards, found.ended, found.observations.sum())

    return lambda state, actions: jax.lax.scan(one, state, actions), pure.reset(range(count))


def theirs(environment: Any, count: int) -> Loop:
    """Return gymnax's loop."""
    parameters = environment.default_params
    reset = jax.vmap(environment.reset, in_axes=(0, None))
    step = jax.vmap(environment.step, in_axes=(0, 0, 0, None))

    def one(carry: Any, chosen: jax.Array) -> Any:
        key, state = carry
        key, own = jax.random.split(key)
        observations, state, rewards, terminated, truncated, _ = step(
            jax.random.split(own, count), state, chosen, parameters
        )
        return (key, state), (rewards, terminated | truncated, observations.sum())

    first = reset(jax.random.split(jax.random.key(0), count), parameters)[1]
    return lambda carry, actions: jax.lax.scan(one, carry, actions), (jax.random.key(1), first)


def compiled_loops(environment: str, make: Callable[[], Any], count: int) -> dict[str, Loop]:
    """Return the loops that are one program each."""
    own = {"hpcrl, compiled loop": ours(make, count)}
    if environment == "CartPole-v1":
        return own | {"gymnax, compiled loop": theirs(gymnax.make(environment)[0], count)}
    catch = gymnax.make("Catch-bsuite", rows=SIDE, columns=SIDE)[0]
    return own | {
        "gymnax with these rules, loop": theirs(Ruled(make()), count),
        f"gymnax's Catch {SIDE} x {SIDE}, loop": theirs(catch, count),
    }


def in_python(step: Callable[[Any], Any], actions: Any) -> Callable[[], Any]:
    """Return a loop that takes a step for each row of actions."""

    def run() -> None:
        for row in actions:
            step(row)

    return run


def python_loops(environment: str, make: Callable[[], Any], count: int, actions: Any) -> dict[str, Callable[[], Any]]:
    """Return the loops of Python."""
    vectors = {f"hpcrl, {way}": make_vector(way, make, count) for way in WAYS[environment]}
    peers = {"SyncVectorEnv": SyncVectorEnv([make] * count, autoreset_mode=AutoresetMode.SAME_STEP)}
    if environment == "CartPole-v1":
        pool = {"env_type": "gymnasium", "num_envs": count, "num_threads": 1, "seed": 0}
        peers["EnvPool"] = envpool.make(environment, **pool)
    for vector in vectors.values():
        vector.reset(range(count))
    for peer in peers.values():
        peer.reset()
    return {f"{name}, from Python": in_python(vector.step, actions) for name, vector in (vectors | peers).items()}


def main(environment: str, count: int) -> None:
    runtime.configure()
    make = partial(gymnasium_environment, environment, LIMITS[environment])
    kinds = 3 if environment != "CartPole-v1" else 2  # Catch has three actions
    actions = jax.random.randint(jax.random.key(2), (STEPS, count), 0, kinds)
    loops: dict[str, Callable[[], Any]] = {}
    for name, (loop, state) in compiled_loops(environment, make, count).items():
        program = jax.jit(loop).lower(state, actions).compile()
        loops[name] = partial(_waited, program, state, actions)
    loops |= python_loops(environment, make, count, np.asarray(actions, np.int32))
    least = dict.fromkeys(loops, float("inf"))
    for run in loops.values():
        run()
    for _ in range(ROUNDS):  # in turn, because other work on the machine comes and goes
        for name, run in loops.items():
            begun = perf_counter()
            run()
            least[name] = min(least[name], perf_counter() - begun)
    print(json.dumps({name: 1e6 * seconds / STEPS / count for name, seconds in least.items()}))


def _waited(program: Callable[..., Any], state: Any, actions: Any) -> None:
    jax.block_until_ready(program(state, actions))


if __name__ == "__main__":
    assert jnp.zeros(1).dtype == jnp.float32
    main(sys.argv[1], int(sys.argv[2]))
