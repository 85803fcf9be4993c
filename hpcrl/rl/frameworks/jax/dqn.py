"""DQN's loss in JAX; the formulae are those of hpcrl.rl.specification.dqn."""

from __future__ import annotations

from typing import Any

import jax
import optax

from hpcrl.rl.frameworks.jax.layers import Layers, best_actions, chosen, duel, forward


def q_values(online: Layers, observations: jax.Array, settings: Any) -> jax.Array:
    """Return Q (n, actions)."""
    output = forward(online, observations)
    return duel(output) if settings.dueling else output


def greedy(observations: jax.Array, settings: Any, online: Layers) -> jax.Array:
    """Return the greedy actions (n,)."""
    return best_actions(q_values(online, observations, settings))


def loss(online: Layers, batch: Any, settings: Any, target: Layers) -> jax.Array:
    """Return the mean Huber or squared error of Q(s, a) against r + gamma (1 - terminated) max_a' Q_target(s', a')."""
    observations, actions, rewards, following, terminated = batch
    values = q_values(target, following, settings)
    best = chosen(values, best_actions(q_values(online, following, settings))) if settings.double else values.max(1)
    wanted = jax.lax.stop_gradient(rewards + settings.gamma * (1 - terminated) * best)
    errors = chosen(q_values(online, observations, settings), actions) - wanted
    return (optax.huber_loss(errors) if settings.loss == "huber" else errors**2).mean()
