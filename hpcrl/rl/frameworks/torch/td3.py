"""TD3's policy and losses in PyTorch; the formulae are those of hpcrl.rl.specification.td3."""

from __future__ import annotations

from typing import Any

import torch

from hpcrl.rl.frameworks.torch.layers import Layers, forward
from hpcrl.rl.layers import halves


def greedy(observations: torch.Tensor, settings: Any, actor: Layers) -> torch.Tensor:
    """Return the policy's actions (n, actions), from -1 to 1."""
    return torch.tanh(forward(actor, observations, settings.activation))


def critic_loss(
    critics: Layers, batch: Any, settings: Any, target_actor: Layers, target_critics: Layers
) -> torch.Tensor:
    """Return the sum of both critics' mean squared errors."""
    observations, actions, rewards, following, terminated, noise = batch
    with torch.no_grad():
        smoothing = (settings.target_noise * noise).clamp(-settings.noise_clip, settings.noise_clip)
        taken = (greedy(following, settings, target_actor) + smoothing).clamp(-1, 1)
        values = [_q(critic, following, taken, settings) for critic in halves(target_critics)]
        wanted = rewards + settings.gamma * (1 - terminated) * torch.minimum(*values)
    first, second = (_q(critic, observations, actions, settings) for critic in halves(critics))
    return ((first - wanted) ** 2).mean() + ((second - wanted) ** 2).mean()


def actor_loss(actor: Layers, batch: Any, settings: Any, critics: Layers) -> torch.Tensor:
    """Return minus the mean of the first critic's Q of the policy's actions."""
    observations, *_ = batch
    return -_q(halves(critics)[0], observations, greedy(observations, settings, actor), settings).mean()


def _q(critic: Layers, observations: torch.Tensor, actions: torch.Tensor, settings: Any) -> torch.Tensor:
    """Return Q (n,)."""
    given = torch.cat((observations, actions), 1)
    return forward(critic, given, settings.activation).squeeze(1)
