"""PPO's sampling and loss in PyTorch; the formulae are those of hpcrl.rl.specification.ppo."""

from __future__ import annotations

from typing import Any

import torch

from hpcrl.rl.frameworks.torch.layers import Layers, forward
from hpcrl.rl.layers import halves

Tensors = tuple[torch.Tensor, ...]


def greedy(observations: torch.Tensor, settings: Any, both: Layers) -> torch.Tensor:
    """Return the most probable actions (n,)."""
    return forward(halves(both)[0], observations, "tanh").argmax(1)


def sample(observations: torch.Tensor, noise: torch.Tensor, settings: Any, both: Layers) -> Tensors:
    """Return actions (n,), their log-probabilities (n,) and values (n,); `noise` (n, actions) is standard Gumbel."""
    actor, critic = halves(both)
    logits = forward(actor, observations, "tanh")
    actions = (logits + noise).argmax(1)
    logs = torch.log_softmax(logits, 1).gather(1, actions[:, None]).squeeze(1)
    return actions, logs, forward(critic, observations, "tanh").squeeze(1)


def loss(both: Layers, batch: Any, settings: Any) -> tuple[torch.Tensor, Tensors]:
    """Return the clipped policy loss, plus the weighted value loss, minus the weighted entropy; and the KL divergence."""
    observations, actions, old_logs, advantages, returns, old_values, clip = batch
    actor, critic = halves(both)
    logs = torch.log_softmax(forward(actor, observations, "tanh"), 1)
    difference = logs.gather(1, actions[:, None]).squeeze(1) - old_logs
    ratio = difference.exp()
    policy = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - clip, 1 + clip)).mean()
    entropy = -(logs.exp() * logs).sum(1).mean()
    values = forward(critic, observations, "tanh").squeeze(1)
    errors = (values - returns) ** 2
    if settings.clip_values:
        near = old_values + (values - old_values).clamp(-clip, clip)
        errors = torch.maximum(errors, (near - returns) ** 2)
    kl = (ratio - 1 - difference).mean()
    return policy + settings.value_weight * errors.mean() - settings.entropy_weight * entropy, (kl,)
