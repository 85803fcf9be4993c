"""TD3's policy and losses in MXNet; the formulae are those of hpcrl.rl.specification.td3."""

from __future__ import annotations

from typing import Any

from mxnet import autograd

from hpcrl.rl.frameworks.mxnet.layers import Layers, forward
from hpcrl.rl.layers import halves


def greedy(F: Any, observations: Any, settings: Any, actor: Layers) -> Any:
    """Return the policy's actions (n, actions), from -1 to 1."""
    return F.tanh(forward(F, actor, observations, settings.activation))


def critic_loss(
    F: Any, critics: Layers, batch: Any, settings: Any, target_actor: Layers, target_critics: Layers
) -> Any:
    """Return the sum of both critics' mean squared errors."""
    observations, actions, rewards, following, terminated, noise = batch
    with autograd.pause():
        smoothing = F.clip(settings.target_noise * noise, -settings.noise_clip, settings.noise_clip)
        taken = F.clip(greedy(F, following, settings, target_actor) + smoothing, -1, 1)
        values = [_q(F, critic, following, taken, settings) for critic in halves(target_critics)]
        wanted = F.BlockGrad(rewards + settings.gamma * (1 - terminated) * F.broadcast_minimum(*values))
    first, second = (_q(F, critic, observations, actions, settings) for critic in halves(critics))
    return F.mean((first - wanted) ** 2) + F.mean((second - wanted) ** 2)


def actor_loss(F: Any, actor: Layers, batch: Any, settings: Any, critics: Layers) -> Any:
    """Return minus the mean of the first critic's Q of the policy's actions."""
    observations, *_ = batch
    return -F.mean(_q(F, halves(critics)[0], observations, greedy(F, observations, settings, actor), settings))


def _q(F: Any, critic: Layers, observations: Any, actions: Any, settings: Any) -> Any:
    """Return Q (n,)."""
    return F.squeeze(forward(F, critic, F.concat(observations, actions, dim=1), settings.activation), axis=1)
