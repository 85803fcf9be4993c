"""DQN's loss in MXNet; the formulae are those of hpcrl.rl.specification.dqn."""

from __future__ import annotations

from typing import Any

from mxnet import autograd

from hpcrl.rl.frameworks.mxnet.layers import Layers, duel, forward


def q_values(F: Any, online: Layers, observations: Any, settings: Any) -> Any:
    """Return Q (n, actions)."""
    output = forward(F, online, observations)
    return duel(F, output) if settings.dueling else output


def greedy(F: Any, observations: Any, settings: Any, online: Layers) -> Any:
    """Return the greedy actions (n,)."""
    return F.argmax(q_values(F, online, observations, settings), axis=1)


def loss(F: Any, online: Layers, batch: Any, settings: Any, target: Layers) -> Any:
    """Return the mean Huber or squared error of Q(s, a) against r + gamma (1 - terminated) max_a' Q_target(s', a')."""
    observations, actions, rewards, following, terminated = batch
    # Not recorded in imperative mode: the backward pass through argmax and duelling crashes MXNet.
    with autograd.pause():
        values = q_values(F, target, following, settings)
        if settings.double:
            best = F.pick(values, F.argmax(q_values(F, online, following, settings), axis=1), axis=1)
        else:
            best = F.max(values, axis=1)
    chosen = F.pick(q_values(F, online, observations, settings), actions, axis=1)
    errors = chosen - F.BlockGrad(rewards + settings.gamma * (1 - terminated) * best)
    return F.mean(F.smooth_l1(errors, scalar=1.0) if settings.loss == "huber" else errors * errors)
