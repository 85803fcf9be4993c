"""Run in JAX's environment: how far CartPole in JAX strays from Gymnasium's over whole episodes of random actions."""

from __future__ import annotations

import json

import gymnasium
import jax
import numpy as np

from hpcrl.rl.envs.jax import cartpole


def main() -> None:
    environment = gymnasium.make("CartPole-v1")
    draw = np.random.default_rng(0)
    step = jax.jit(cartpole.step)
    largest, ends = 0.0, 0
    for episode in range(50):
        state, _ = environment.reset(seed=episode)
        mine = np.asarray(state, np.float32)
        over = False
        while not over:
            action = int(draw.integers(2))
            state, reward, over, _, _ = environment.step(action)
            mine, earned, ended = step(mine, action)
            assert float(earned) == reward
            assert bool(ended) == over, (state, mine)
            largest = max(largest, float(np.abs(np.asarray(mine) - state).max()))
            ends += over
    assert ends == 50
    first = np.asarray(jax.vmap(cartpole.reset)(jax.random.split(jax.random.key(0), 10_000)))
    assert np.abs(first).max() <= 0.05
    assert np.allclose(first.std(0), 0.1 / np.sqrt(12), rtol=0.05)
    print(json.dumps({"largest": largest}))


if __name__ == "__main__":
    main()
