"""Run in JAX's environment: Doors in JAX beside Doors in NumPy, as JSON."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hpcrl.errors import UsageError
from hpcrl.rl.envs.doors import FREE, GOAL
from hpcrl.rl.envs.doors_arrays import of_environment
from hpcrl.rl.envs.jax.doors import world
from hpcrl.rl.envs.jax.registry import world_of
from hpcrl.rl.envs.make import gymnasium_environment
from hpcrl.rl.vector.make import make_vector

COUNT, STEPS, LIMIT = 500, 200, 60
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"same_column": True, "extra_step": True},
    {"size": 8, "doors": 3, "reward_bumping": True},
    {"size": 9, "doors": 1},
)


def compared(options: dict[str, Any]) -> dict[str, Any]:
    """Return how many transitions of random episodes differ in any bit, and what the episodes had."""
    environment = gymnasium_environment("Doors-v0", LIMIT, options)
    made, limit = world_of(environment)
    step = jax.jit(jax.vmap(made.step))
    draw = np.random.default_rng(0)
    arrays = of_environment(environment, COUNT)
    observations = arrays.reset(range(COUNT))
    facts = {"steps": 0, "differ": 0, "goals": 0, "cut off": 0, "limit": limit}
    for _ in range(STEPS):
        actions = draw.choice(5, COUNT, p=(0.1, 0.2, 0.1, 0.2, 0.4))
        found = arrays.step(actions)
        last, rewards, terminated = (np.asarray(part) for part in step(observations, actions))
        same = (last.view(np.int32) == found.last.view(np.int32)).all(axis=1)
        same &= (rewards.view(np.int32) == found.rewards.view(np.int32)) & (terminated == found.terminated)
        facts["differ"] += int((~same).sum())
        facts["steps"] += COUNT
        facts["goals"] += int(found.terminated.sum())
        facts["cut off"] += int((found.ended & ~found.terminated).sum())
        observations = found.observations
    return facts


def starts(**options: Any) -> dict[str, Any]:
    """Return what the starts of 20,000 keys are."""
    made = world(**options)
    size = int(made.inputs**0.5)
    first = np.asarray(jax.vmap(made.reset)(jax.random.split(jax.random.key(1), 20_000))).reshape(-1, size, size)
    agents, goals = first[:, -1].argmax(axis=1), (first[:, 0] == GOAL).argmax(axis=1)
    counts = np.zeros((size, size), int)
    np.add.at(counts, (agents, goals), 1)
    cells = [(first == code).sum(axis=(1, 2)) for code in range(4)]
    return {
        "pairs": int((counts > 0).sum()),
        "least": int(counts[counts > 0].min()),
        "most": int(counts.max()),
        "cells": [sorted(set(each.tolist())) for each in cells],
        "open": np.flatnonzero(first[0, size // 2] == FREE).tolist(),
    }


def stepped_compiled() -> dict[str, Any]:
    """Return what episodes of compiled environments have, in which every agent stays."""
    make = partial(gymnasium_environment, "Doors-v0", 4, {"size": 5, "doors": 2, "extra_step": True})
    environments = make_vector("compiled", make, 6)
    first = environments.reset(range(6))
    found = [environments.step(np.zeros(6, np.int64)) for _ in range(10)]
    return {
        "shape": list(first.shape),
        "ended": [bool(each.ended.all()) for each in found],
        "the last is kept": bool((found[4].last == first).all()),
        "the next is another": bool((found[4].observations != found[4].last).any()),
    }


def refused() -> str:
    try:
        world_of(gymnasium_environment("CartPole-v1", None, {"sutton_barto_reward": True}))
    except UsageError as error:
        return str(error)
    return "it was made"


if __name__ == "__main__":
    assert jnp.zeros(1).dtype == jnp.float32
    facts = {
        "variants": [compared(options) for options in VARIANTS],
        "starts": starts(),
        "starts in one column": starts(same_column=True),
        "compiled": stepped_compiled(),
        "refused": refused(),
    }
    print(json.dumps(facts))
