"""PPO: sampling, the loss and its gradient (Schulman et al. 2017, arXiv 1707.06347), and advantages.

The group `both` holds an actor (logits) and a critic (a value), which share nothing but the gradient's norm.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcrl.catalogue.algorithms.ppo import Settings
from hpcrl.rl.interfaces import Arrays, Floats, Weights
from hpcrl.rl.specification.networks import backward, forward, named


def greedy(observations: Floats, settings: Settings, both: Weights) -> NDArray[np.int64]:
    """Return the most probable actions (n,)."""
    actions: NDArray[np.int64] = forward(named(both, "actor"), observations, "tanh")[-1].argmax(axis=1)
    return actions


def sample(observations: Floats, noise: Floats, settings: Settings, both: Weights) -> Arrays:
    """Return actions (n,), their log-probabilities (n,) and values (n,); `noise` (n, actions) is standard Gumbel."""
    logits = forward(named(both, "actor"), observations, "tanh")[-1]
    values = forward(named(both, "critic"), observations, "tanh")[-1][:, 0]
    actions = (logits + noise).argmax(axis=1)
    return actions, log_softmax(logits)[np.arange(len(actions)), actions], values


def log_softmax(logits: Floats) -> Floats:
    """Return log-probabilities (n, actions)."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    logs: Floats = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return logs


def loss_and_gradient(both: Weights, batch: Arrays, settings: Settings) -> tuple[float, Weights, Arrays]:
    """Return the loss, its gradient, and the approximate KL divergence of the policies ().

    The batch: observations (n, inputs), actions (n,), their log-probabilities (n,) when they were taken, advantages (n,),
    returns (n,), values (n,) when the actions were taken, and the clip range (1,).
    Policy: mean of max(-A r, -A clip(r, 1 - c, 1 + c)) with the ratio r of probabilities (equation 7). Values: mean squared
    error, without a half; with `clip_values` the larger of that and of values within c of the former ones. Minus the
    weighted mean entropy. KL: mean of (r - 1) - log r (J. Schulman, "Approximating KL divergence", 2020).
    """
    actor, critic = named(both, "actor"), named(both, "critic")
    dtype = actor["layers.0.weight"].dtype
    observations, actions, *others = batch
    observations = observations.astype(dtype)
    old_logs, advantages, returns, old_values, clip = (array.astype(dtype) for array in others)
    rows = np.arange(len(actions))
    outputs = forward(actor, observations, "tanh")
    logs = log_softmax(outputs[-1])
    probabilities = np.exp(logs)
    difference = logs[rows, actions] - old_logs
    ratio = np.exp(difference)
    plain, clipped = -advantages * ratio, -advantages * np.clip(ratio, 1 - clip, 1 + clip)
    entropies = -(probabilities * logs).sum(axis=1)

    chosen = np.zeros_like(logs)
    chosen[rows, actions] = 1
    slope = np.where(plain >= clipped, plain, 0) / len(rows)
    delta = slope[:, None] * (chosen - probabilities)
    delta += settings.entropy_weight * probabilities * (logs + entropies[:, None]) / len(rows)
    gradient = {f"actor.{name}": array for name, array in backward(actor, outputs, delta, "tanh").items()}

    outputs = forward(critic, observations, "tanh")
    value_loss, errors = _value_loss(outputs[-1][:, 0], returns, old_values, clip, settings.clip_values)
    delta = (settings.value_weight * 2 * errors / len(rows))[:, None]
    gradient |= {f"critic.{name}": array for name, array in backward(critic, outputs, delta, "tanh").items()}
    loss = np.maximum(plain, clipped).mean() + settings.value_weight * value_loss
    loss -= settings.entropy_weight * entropies.mean()
    return float(loss), gradient, (np.asarray((ratio - 1 - difference).mean()),)


def _value_loss(
    values: Floats, returns: Floats, old_values: Floats, clip: Floats, clipping: bool
) -> tuple[float, Floats]:
    """Return the mean squared error of values, and the errors (n,) that its gradient has."""
    errors = values - returns
    if not clipping:
        return float((errors**2).mean()), errors
    change = values - old_values
    near = old_values + np.clip(change, -clip, clip) - returns
    return float(np.maximum(errors**2, near**2).mean()), np.where(
        errors**2 >= near**2, errors, near * (np.abs(change) <= clip)
    )
