"""Run by benchmarks.stepping in an environment with JAX, gymnax and EnvPool: microseconds of a step of one CartPole, as JSON.

All loops step the same number of environments with the same actions, reset those whose episode ends, and return rewards and ends of each
step. Each is called once before it is measured; the least of the rounds counts.
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

from hpcrl.rl.envs.make import gymnasium_environment
from hpcrl.rl.frameworks.jax import runtime
from hpcrl.rl.frameworks.jax.fused_stepping import rollout
from hpcrl.rl.vector.compiled import PureEnvironments
from hpcrl.rl.vector.make import make_vector

STEPS, ROUNDS = 512, 7


def ours(count: int) -> tuple[Callable[..., Any], Any]:
    """Return hpcrl's loop and its first state."""
    pure = PureEnvironments(gymnasium_environment("CartPole-v1", None))
    return partial(rollout, pure), pure.reset(range(count))


def theirs(count: int) -> tuple[Callable[..., Any], Any]:
    """Return gymnax's loop and its first state."""
    environment, parameters = gymnax.make("CartPole-v1")
    reset, step = (
        jax.vmap(each, in_axes=axes)
        for each, axes in ((environment.reset, (0, None)), (environment.step, (0, 0, 0, None)))
    )

    def one(carry: Any, actions: jax.Array) -> Any:
        key, state = carry
        key, own = jax.random.split(key)
        found = step(jax.random.split(own, count), state, actions, parameters)
        return (key, found[1]), (found[2], found[3])

    first = reset(jax.random.split(jax.random.key(0), count), parameters)[1]
    return lambda carry, actions: jax.lax.scan(one, carry, actions), (jax.random.key(1), first)


def in_python(step: Callable[[Any], Any], actions: Any) -> Callable[[], Any]:
    """Return a loop that takes a step for each row of actions."""

    def run() -> None:
        for row in actions:
            step(row)

    return run


def stepped(stepping: str, count: int) -> Callable[[Any], Any]:
    """Return the step of hpcrl's environments."""
    environments = make_vector(stepping, partial(gymnasium_environment, "CartPole-v1", None), count)
    environments.reset(range(count))
    return environments.step


def pooled(count: int) -> Callable[[Any], Any]:
    """Return the step of EnvPool's environments, which are C++."""
    environments = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=count, num_threads=1, seed=0)
    environments.reset()
    return environments.step


def main(count: int) -> None:
    runtime.configure()
    actions = jax.random.randint(jax.random.key(2), (STEPS, count), 0, 2)
    loops: dict[str, Callable[[], Any]] = {}
    for name, (loop, state) in {"hpcrl": ours(count), "gymnax": theirs(count)}.items():
        program = jax.jit(loop).lower(state, actions).compile()
        loops[f"{name}, compiled loop"] = partial(_waited, program, state, actions)
    chosen = np.asarray(actions, np.int32)
    for stepping in ("compiled", "sync"):
        loops[f"hpcrl, {stepping}, from Python"] = in_python(stepped(stepping, count), chosen)
    loops["EnvPool, from Python"] = in_python(pooled(count), chosen)
    least = dict.fromkeys(loops, float("inf"))
    for loop in loops.values():
        loop()
    for _ in range(ROUNDS):  # in turn, because other work on the machine comes and goes
        for name, loop in loops.items():
            begun = perf_counter()
            loop()
            least[name] = min(least[name], perf_counter() - begun)
    print(json.dumps({name: 1e6 * seconds / STEPS / count for name, seconds in least.items()}))


def _waited(program: Callable[..., Any], state: Any, actions: Any) -> None:
    jax.block_until_ready(program(state, actions))


if __name__ == "__main__":
    assert jnp.zeros(1).dtype == jnp.float32
    main(int(sys.argv[1]))
