"""Rainbow's loss in PyTorch; the formulae are those of hpcrl.rl.specification.rainbow."""

from __future__ import annotations

from typing import Any

import torch

from hpcrl.rl.frameworks.torch.layers import Layers, duel, forward
from hpcrl.rl.layers import mean_layers, noisy_layers

Tensors = tuple[torch.Tensor, ...]


def _logs(layers: Layers, observations: torch.Tensor, settings: Any) -> torch.Tensor:
    """Return the logarithms of the distributions (n, actions, atoms)."""
    logits = forward(layers, observations).reshape(len(observations), -1, settings.atoms)
    return torch.log_softmax(duel(logits) if settings.dueling else logits, 2)


def _atoms(like: torch.Tensor, settings: Any) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return the atoms' numbers, their values (atoms,), and their distance."""
    numbers = torch.arange(settings.atoms, dtype=like.dtype, device=like.device)
    distance = (settings.value_maximum - settings.value_minimum) / (settings.atoms - 1)
    return numbers, settings.value_minimum + numbers * distance, distance


def q_values(layers: Layers, observations: torch.Tensor, settings: Any) -> torch.Tensor:
    """Return Q (n, actions)."""
    if settings.distributional:
        return _logs(layers, observations, settings).exp() @ _atoms(observations, settings)[1]
    output = forward(layers, observations)
    return duel(output) if settings.dueling else output


def greedy(observations: torch.Tensor, settings: Any, online: Layers) -> torch.Tensor:
    """Return the greedy actions (n,), without noise."""
    return q_values(mean_layers(online, settings.noisy), observations, settings).argmax(1)


def sample(observations: torch.Tensor, noise: torch.Tensor, settings: Any, online: Layers) -> Tensors:
    """Return the greedy actions (n,) of the network with a noise vector, as a tuple of one."""
    return (q_values(noisy_layers(online, noise, settings.noisy), observations, settings).argmax(1),)


def project(probabilities: torch.Tensor, returns: torch.Tensor, discounts: torch.Tensor, settings: Any) -> Tensors:
    """Return the distributions (n, atoms) of returns + discounts Z, and the mass (n,) that lay outside of the support."""
    numbers, values, distance = _atoms(returns, settings)
    places = (returns[:, None] + discounts[:, None] * values - settings.value_minimum) / distance
    inside = places.clamp(0, settings.atoms - 1)
    near = (1 - (inside[:, None, :] - numbers[:, None]).abs()).clamp(0, 1)
    return (near * probabilities[:, None, :]).sum(2), (probabilities * (places != inside)).sum(1)


def loss(online: Layers, batch: Any, settings: Any, target: Layers) -> tuple[torch.Tensor, Tensors]:
    """Return the weighted mean cross-entropy (or Huber loss); and each transition's loss and mass outside."""
    observations, actions, returns, following, discounts, importance, noise, target_noise = batch
    own, other = noisy_layers(online, noise, settings.noisy), noisy_layers(target, target_noise, settings.noisy)
    with torch.no_grad():
        best = q_values(own if settings.double else other, following, settings).argmax(1)
        if settings.distributional:
            future = _chosen(_logs(other, following, settings), best).exp()
            wanted, outside = project(future, returns, discounts, settings)
        else:
            wanted = returns + discounts * _chosen(q_values(other, following, settings), best)
            outside = torch.zeros_like(returns)
    if settings.distributional:
        losses = -(wanted * _chosen(_logs(own, observations, settings), actions)).sum(1)
    else:
        chosen = _chosen(q_values(own, observations, settings), actions)
        losses = torch.nn.functional.huber_loss(chosen, wanted, reduction="none")
    return (importance * losses).mean(), (losses, outside)


def _chosen(values: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """Return the values (n, ...) of one action of each row of (n, actions, ...)."""
    index = actions.reshape(-1, 1, *[1] * (values.dim() - 2)).expand(-1, 1, *values.shape[2:])
    return values.gather(1, index).squeeze(1)
