"""Run in JAX's environment: the replay of compiled Rainbow beside that of the other modes, as JSON."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hpcrl.catalogue.algorithms.rainbow import Settings
from hpcrl.rl.algorithms.rainbow import algorithm
from hpcrl.rl.envs.jax import cartpole
from hpcrl.rl.frameworks.jax import fused_rainbow
from hpcrl.rl.frameworks.jax.fused_off_policy import Happened
from hpcrl.rl.interfaces import Space
from hpcrl.rl.replay.nstep import NStepReplay
from tests.rl.builders import first_weights, learner_of


def windows(steps: int, capacity: int, n_step: int) -> dict[str, Any]:
    """Give both replays the same random episodes; compare the windows that they have."""
    settings = Settings(n_step=n_step, buffer_size=capacity, batch_size=8)
    replay = NStepReplay(10 * steps, 4, settings)
    stored, scores = fused_rainbow.empty(cartpole.WORLDS["CartPole-v1"], settings)
    add = jax.jit(lambda *parts: fused_rainbow.added(settings, *parts))
    draw, length = np.random.default_rng(n_step), 0
    for step in range(steps):
        length += 1
        terminated = bool(draw.random() < 0.1)
        ended = terminated or bool(draw.random() < 0.1)
        observation, following = draw.normal(size=(2, 4)).astype(np.float32)
        action, reward = int(draw.integers(2)), float(np.float32(draw.normal()))
        replay.add(observation, action, reward, following, terminated, ended)
        facts = (observation, action, reward, following, terminated, ended, length)
        stored, scores = add(stored, scores, Happened(step % capacity, *map(jnp.asarray, facts)))
        length = 0 if ended else length
    complete = np.flatnonzero(scores["priorities"])
    order = complete[np.argsort((complete - steps) % capacity)]  # the oldest first
    found = fused_rainbow.windows(settings, stored, jnp.asarray(order))
    wanted = replay.state()
    names = ("observations", "actions", "returns", "following", "discounts")
    apart = [
        float(np.abs(np.asarray(array) - wanted[name][replay.size - len(order) :]).max())
        for name, array in zip(names, found, strict=True)
    ]
    return {"apart": max(apart), "windows": len(order), "pending": min(length, n_step - 1), "capacity": capacity}


def drawn() -> float:
    """Return how often `places` draws another place than a running sum in float64, of 10^5 draws; and never one of priority 0."""
    draw, wrong, count = np.random.default_rng(0), 0, 100_000
    for capacity in (1, 2, 5, 100, 20_000):
        priorities = draw.random(capacity).astype(np.float32) * (draw.random(capacity) < 0.5)
        priorities[-1] = 1.0
        columns = int(np.ceil(np.sqrt(capacity)))
        table = np.zeros(-(-capacity // columns) * columns, np.float32)
        table[:capacity] = priorities
        shares = draw.random(count).astype(np.float32)
        shares[0] = np.float32(1.0)
        chosen = np.concatenate(
            [
                np.asarray(fused_rainbow.places(jnp.asarray(table), jnp.asarray(part)))
                for part in shares.reshape(100, -1)
            ]
        )
        assert (table[chosen] > 0).all(), capacity
        upto = np.cumsum(table.astype(np.float64))
        wrong = max(wrong, int((chosen != np.searchsorted(upto, shares * upto[-1], side="right")).sum()))
    return wrong / count


def prioritized() -> list[float]:
    """Return the priorities of three places after an update of two of them, and the priority of the next new window."""
    settings = Settings(buffer_size=4, n_step=1)
    scores = {"priorities": jnp.array([1.0, 1.0, 1.0, 0.0]), "largest": jnp.float32(1.0)}
    scores |= {"outside": jnp.float32(0.0), "updates": jnp.int32(0)}
    aux = (jnp.array([4.0, 0.25]), jnp.zeros(2))
    scores = fused_rainbow.prioritized(settings, scores, jnp.array([0, 2]), aux)
    return [round(float(value), 4) for value in (*scores["priorities"][:3], scores["largest"])]


def explores() -> dict[str, Any]:
    """Return how often acting with noise and without it chooses other actions in one state."""
    shares = {}
    for noisy in (True, False):
        settings = Settings(noisy=noisy, noise_scale=5.0, hidden=(16,))

        made = algorithm(Space(4, 2), settings)
        learner: Any = learner_of("jax", "fused", made, first_weights(made))
        own = SimpleNamespace(key=jax.random.key_data(jax.random.key(1)), state=jnp.zeros(4))
        choose = jax.jit(
            lambda step, learner=learner, own=own: fused_rainbow.policy(learner, learner.vectors["online"])(own, step)
        )
        shares[str(noisy)] = float(np.mean([int(choose(jnp.int32(step))) for step in range(200)]))
    return shares


if __name__ == "__main__":
    cases = [windows(*case) for case in ((60, 1000, 1), (200, 1000, 3), (200, 64, 3), (300, 64, 10))]
    print(json.dumps({"windows": cases, "drawn": drawn(), "prioritized": prioritized(), "explores": explores()}))
