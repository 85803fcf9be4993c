"""VPG's sampling and losses in PyTorch; the formulae are those of hpcrl.rl.specification.vpg."""

from __future__ import annotations

from typing import Any

import torch

from hpcrl.rl.frameworks.torch.layers import Layers, forward
from hpcrl.rl.layers import with_log_std
from hpcrl.rl.specification.vpg import HALF_LOG_TWO_PI

Tensors = tuple[torch.Tensor, ...]


def greedy(observations: torch.Tensor, settings: Any, actor: Layers) -> torch.Tensor:
    """Return the most probable actions: (n,), or the means (n, actions)."""
    network, log_std = with_log_std(actor)
    outputs = forward(network, observations, settings.activation)
    return outputs if log_std is not None else outputs.argmax(1)


def sample(observations: torch.Tensor, noise: torch.Tensor, settings: Any, actor: Layers, critic: Layers) -> Tensors:
    """Return actions, their log-probabilities (n,) and values (n,); `noise` (n, actions) is standard Gumbel or normal."""
    network, log_std = with_log_std(actor)
    outputs = forward(network, observations, settings.activation)
    values = forward(critic, observations, settings.activation).squeeze(1)
    if log_std is not None:
        return outputs + log_std.exp() * noise, _gaussian_logs(noise, log_std), values
    actions = (outputs + noise).argmax(1)
    return actions, _chosen(outputs, actions), values


def policy_loss(actor: Layers, batch: Any, settings: Any) -> torch.Tensor:
    """Return minus the mean of log-probability times advantage."""
    observations, actions, advantages, _ = batch
    network, log_std = with_log_std(actor)
    outputs = forward(network, observations, settings.activation)
    if log_std is not None:
        logs = _gaussian_logs((actions - outputs) / log_std.exp(), log_std)
    else:
        logs = _chosen(outputs, actions)
    return -(logs * advantages).mean()


def value_loss(critic: Layers, batch: Any, settings: Any) -> torch.Tensor:
    """Return the mean squared error of values."""
    observations, _, _, returns = batch
    return ((forward(critic, observations, settings.activation).squeeze(1) - returns) ** 2).mean()


def _gaussian_logs(standardised: torch.Tensor, log_std: torch.Tensor) -> torch.Tensor:
    return (-0.5 * standardised**2 - log_std - HALF_LOG_TWO_PI).sum(1)


def _chosen(logits: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(logits, 1).gather(1, actions[:, None]).squeeze(1)
