"""Run in JAX's environment: how far a JAX environment strays from Gymnasium's over whole episodes, as JSON."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import gymnasium
import jax
import numpy as np

from hpcrl.rl.envs.jax.registry import world_of, worlds


def main(name: str, episodes: int) -> None:
    environment = gymnasium.make(name)
    world, _ = world_of(SimpleNamespace(spec=environment.spec))
    draw = np.random.default_rng(0)
    step = jax.jit(world.step)
    largest, ends = 0.0, 0
    for episode in range(episodes):
        state, _ = environment.reset(seed=episode)
        mine = np.asarray(state, np.float32)
        terminated = truncated = False
        # Every second episode pushes the way that it moves, which ends at MountainCar's flag.
        while not terminated and not truncated:
            action = int(draw.integers(world.actions)) if episode % 2 else int(state[1] > 0) * (world.actions - 1)
            state, reward, terminated, truncated, _ = environment.step(action)
            mine, earned, ended = step(mine, action)
            assert float(earned) == reward
            assert bool(ended) == terminated, (state, mine)
            largest = max(largest, float(np.abs(np.asarray(mine) - state).max()))
        ends += terminated
    first = np.asarray(jax.vmap(world.reset)(jax.random.split(jax.random.key(0), 10_000)))
    wanted = np.stack([environment.reset(seed=number)[0] for number in range(2_000)])
    apart = {
        "mean": float(np.abs(first.mean(0) - wanted.mean(0)).max()),
        "deviation": float(np.abs(first.std(0) - wanted.std(0)).max()),
        "beyond": float((np.abs(first).max(0) - np.abs(wanted).max(0)).max()),
    }
    known = sorted(each for each in worlds() if "-v" in each)
    print(json.dumps({"known": known, "largest": largest, "ends": ends, "first": apart}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
