"""DQN's loss in PyTorch; the formulae are those of hpcrl.rl.specification.dqn."""

from __future__ import annotations

from typing import Any

import torch

from hpcrl.rl.frameworks.torch.layers import Layers, duel, forward


def q_values(online: Layers, observations: torch.Tensor, settings: Any) -> torch.Tensor:
    """Return Q (n, actions)."""
    output = forward(online, observations)
    return duel(output) if settings.dueling else output


def greedy(observations: torch.Tensor, settings: Any, online: Layers) -> torch.Tensor:
    """Return the greedy actions (n,)."""
    return q_values(online, observations, settings).argmax(1)


def loss(online: Layers, batch: Any, settings: Any, target: Layers) -> torch.Tensor:
    """Return the mean Huber or squared error of Q(s, a) against r + gamma (1 - terminated) max_a' Q_target(s', a')."""
    observations, actions, rewards, following, terminated = batch
    with torch.no_grad():
        values = q_values(target, following, settings)
        if settings.double:
            best = values.gather(1, q_values(online, following, settings).argmax(1, keepdim=True)).squeeze(1)
        else:
            best = values.amax(1)
        wanted = rewards + settings.gamma * (1 - terminated) * best
    chosen = q_values(online, observations, settings).gather(1, actions[:, None]).squeeze(1)
    error = torch.nn.functional.huber_loss if settings.loss == "huber" else torch.nn.functional.mse_loss
    return error(chosen, wanted)
