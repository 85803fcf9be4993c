"""VPG's sampling and losses in MXNet; the formulae are those of hpcrl.rl.specification.vpg."""

from __future__ import annotations

from typing import Any

from hpcrl.rl.frameworks.mxnet.layers import Layers, forward
from hpcrl.rl.layers import with_log_std
from hpcrl.rl.specification.vpg import HALF_LOG_TWO_PI


def greedy(F: Any, observations: Any, settings: Any, actor: Layers) -> Any:
    """Return the most probable actions: (n,), or the means (n, actions)."""
    network, log_std = with_log_std(actor)
    outputs = forward(F, network, observations, settings.activation)
    return outputs if log_std is not None else F.argmax(outputs, axis=1)


def sample(F: Any, observations: Any, noise: Any, settings: Any, actor: Layers, critic: Layers) -> tuple[Any, ...]:
    """Return actions, their log-probabilities (n,) and values (n,); `noise` (n, actions) is standard Gumbel or normal."""
    network, log_std = with_log_std(actor)
    outputs, values = forward(F, network, observations, settings.activation), _values(F, critic, observations, settings)
    if log_std is not None:
        actions = outputs + F.broadcast_mul(noise, F.exp(log_std.value))
        return actions, _gaussian_logs(F, noise, log_std.value), values
    actions = F.argmax(outputs + noise, axis=1)
    return actions, _chosen(F, outputs, actions), values


def policy_loss(F: Any, actor: Layers, batch: Any, settings: Any) -> Any:
    """Return minus the mean of log-probability times advantage."""
    observations, actions, advantages, _ = batch
    network, log_std = with_log_std(actor)
    outputs = forward(F, network, observations, settings.activation)
    if log_std is not None:
        standardised = F.broadcast_div(actions - outputs, F.exp(log_std.value))
        logs = _gaussian_logs(F, standardised, log_std.value)
    else:
        logs = _chosen(F, outputs, actions)
    return -F.mean(logs * advantages)


def value_loss(F: Any, critic: Layers, batch: Any, settings: Any) -> Any:
    """Return the mean squared error of values."""
    observations, _, _, returns = batch
    return F.mean((_values(F, critic, observations, settings) - returns) ** 2)


def _values(F: Any, critic: Layers, observations: Any, settings: Any) -> Any:
    return F.squeeze(forward(F, critic, observations, settings.activation), axis=1)


def _gaussian_logs(F: Any, standardised: Any, log_std: Any) -> Any:
    return F.sum(F.broadcast_sub(-0.5 * standardised**2, log_std + HALF_LOG_TWO_PI), axis=1)


def _chosen(F: Any, logits: Any, actions: Any) -> Any:
    return F.pick(F.log_softmax(logits), actions, axis=1)
