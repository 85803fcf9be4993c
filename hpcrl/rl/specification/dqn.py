"""DQN: the targets, the loss and its gradient (Mnih et al. 2015, doi 10.1038/nature14236)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcrl.catalogue.algorithms.dqn import Settings
from hpcrl.rl.interfaces import Arrays, Floats, Weights
from hpcrl.rl.specification.networks import backward, duel, duel_gradient, forward


def q_values(weights: Weights, observations: Floats, settings: Settings) -> Floats:
    """Return Q (n, actions)."""
    output = forward(weights, observations)[-1]
    return duel(output) if settings.dueling else output


def greedy(observations: Floats, settings: Settings, online: Weights) -> NDArray[np.int64]:
    """Return the greedy actions (n,)."""
    actions: NDArray[np.int64] = q_values(online, observations, settings).argmax(axis=1)
    return actions


def targets(online: Weights, target: Weights, batch: Arrays, settings: Settings) -> Floats:
    """Return r + gamma (1 - terminated) max_a Q_target(s', a) (n,), the maximum chosen by the online network if double.

    The double form is that of van Hasselt et al. 2016, arXiv 1509.06461.
    """
    _, _, rewards, following, terminated = batch
    dtype = online["layers.0.weight"].dtype
    following = following.astype(dtype)
    values = q_values(target, following, settings)
    if settings.double:
        chosen = q_values(online, following, settings).argmax(axis=1)
        best = values[np.arange(len(chosen)), chosen]
    else:
        best = values.max(axis=1)
    wanted: Floats = rewards.astype(dtype) + dtype.type(settings.gamma) * (1 - terminated.astype(dtype)) * best
    return wanted


def loss_and_gradient(
    online: Weights, batch: Arrays, settings: Settings, target: Weights
) -> tuple[float, Weights, Arrays]:
    """Return the mean loss of Q(s, a) against the targets, its gradient by back-propagation, and no aux.

    The batch: observations (n, inputs), actions (n,), rewards (n,), next observations (n, inputs), terminated (n,), which
    is 1 where the episode ended by itself (not by truncation).
    Huber (delta 1): e^2/2 for |e| <= 1, else |e| - 1/2. MSE: e^2, without a half.
    """
    observations, actions = batch[0], batch[1]
    wanted = targets(online, target, batch, settings)
    outputs = forward(online, observations.astype(wanted.dtype))
    rows = np.arange(len(wanted))
    values = duel(outputs[-1]) if settings.dueling else outputs[-1]
    errors = values[rows, actions] - wanted
    if settings.loss == "huber":
        loss = np.where(np.abs(errors) <= 1, errors**2 / 2, np.abs(errors) - 0.5).mean()
        slope = np.clip(errors, -1, 1) / len(errors)
    else:
        loss = (errors**2).mean()
        slope = 2 * errors / len(errors)
    delta = np.zeros_like(values)
    delta[rows, actions] = slope
    return float(loss), backward(online, outputs, duel_gradient(delta) if settings.dueling else delta), ()
