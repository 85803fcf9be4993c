"""PPO's sampling and loss in MXNet; the formulae are those of hpcrl.rl.specification.ppo."""

from __future__ import annotations

from typing import Any

from hpcrl.rl.frameworks.mxnet.layers import Layers, forward
from hpcrl.rl.layers import halves


def greedy(F: Any, observations: Any, settings: Any, both: Layers) -> Any:
    """Return the most probable actions (n,)."""
    return F.argmax(forward(F, halves(both)[0], observations, "tanh"), axis=1)


def sample(F: Any, observations: Any, noise: Any, settings: Any, both: Layers) -> tuple[Any, ...]:
    """Return actions (n,), their log-probabilities (n,) and values (n,); `noise` (n, actions) is standard Gumbel."""
    actor, critic = halves(both)
    logits = forward(F, actor, observations, "tanh")
    actions = F.argmax(logits + noise, axis=1)
    return actions, F.pick(F.log_softmax(logits), actions, axis=1), _values(F, critic, observations)


def loss(F: Any, both: Layers, batch: Any, settings: Any) -> tuple[Any, ...]:
    """Return the clipped policy loss, plus the weighted value loss, minus the weighted entropy; and the KL divergence."""
    observations, actions, old_logs, advantages, returns, old_values, clip = batch
    actor, critic = halves(both)
    logs = F.log_softmax(forward(F, actor, observations, "tanh"))
    difference = F.pick(logs, actions, axis=1) - old_logs
    ratio = F.exp(difference)
    clipped = _between(F, ratio, 1 - clip, 1 + clip)
    policy = F.mean(F.broadcast_maximum(-advantages * ratio, -advantages * clipped))
    entropy = -F.mean(F.sum(F.exp(logs) * logs, axis=1))
    values = _values(F, critic, observations)
    errors = (values - returns) ** 2
    if settings.clip_values:
        near = old_values + _between(F, values - old_values, -clip, clip)
        errors = F.broadcast_maximum(errors, (near - returns) ** 2)
    kl = F.mean(ratio - 1 - difference)
    return policy + settings.value_weight * F.mean(errors) - settings.entropy_weight * entropy, F.BlockGrad(kl)


def _values(F: Any, critic: Layers, observations: Any) -> Any:
    return F.squeeze(forward(F, critic, observations, "tanh"), axis=1)


def _between(F: Any, values: Any, low: Any, high: Any) -> Any:
    """Clip to bounds (1,) that are arrays: F.clip takes numbers only."""
    return F.broadcast_minimum(F.broadcast_maximum(values, low), high)
