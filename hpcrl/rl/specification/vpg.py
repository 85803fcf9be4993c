"""VPG: sampling, and the losses of policy and values with their gradients (Williams 1992; Spinning Up's form).

The actor gives logits of discrete actions. Of continuous ones it gives the means of a diagonal Gaussian, whose log standard deviations
``log_std`` (actions,) are weights of the actor, too, the same for all observations.
"""

from __future__ import annotations

import math

import numpy as np

from hpcrl.catalogue.algorithms.vpg import Settings
from hpcrl.rl.interfaces import Actions, Arrays, Floats, Weights
from hpcrl.rl.specification.networks import backward, forward
from hpcrl.rl.specification.ppo import log_softmax

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


def greedy(observations: Floats, settings: Settings, actor: Weights) -> Actions:
    """Return the most probable actions: (n,), or the means (n, actions)."""
    outputs = forward(actor, observations, settings.activation)[-1]
    return outputs if "log_std" in actor else outputs.argmax(axis=1)


def sample(observations: Floats, noise: Floats, settings: Settings, actor: Weights, critic: Weights) -> Arrays:
    """Return actions, their log-probabilities (n,) and values (n,).

    `noise` (n, actions) is standard Gumbel for discrete actions, and standard normal for continuous ones.
    """
    outputs = forward(actor, observations, settings.activation)[-1]
    values = forward(critic, observations, settings.activation)[-1][:, 0]
    if "log_std" in actor:
        actions = outputs + np.exp(actor["log_std"]) * noise
        return actions, gaussian_logs(noise, actor["log_std"]), values
    actions = (outputs + noise).argmax(axis=1)
    return actions, log_softmax(outputs)[np.arange(len(actions)), actions], values


def gaussian_logs(standardised: Floats, log_std: Floats) -> Floats:
    """Return the log-probabilities (n,) of actions whose distances from the means, in standard deviations, are (n, actions).

    The actions' dimensions are independent: their log-probabilities are summed.
    """
    logs: Floats = (-0.5 * standardised**2 - log_std - HALF_LOG_TWO_PI).sum(axis=1)
    return logs


def policy_loss_and_gradient(actor: Weights, batch: Arrays, settings: Settings) -> tuple[float, Weights, Arrays]:
    """Return minus the mean of log-probability times advantage, whose gradient is the policy gradient, and its gradient.

    The batch: observations (n, inputs), actions (n,) or (n, actions), advantages (n,) and returns (n,).
    """
    dtype = actor["layers.0.weight"].dtype
    observations, actions, advantages = batch[0].astype(dtype), batch[1], batch[2].astype(dtype)
    outputs = forward(actor, observations, settings.activation)
    slope = -advantages[:, None] / len(actions)  # of the loss by each log-probability
    if "log_std" in actor:
        deviations = np.exp(actor["log_std"])
        distances = (actions.astype(dtype) - outputs[-1]) / deviations
        chosen = gaussian_logs(distances, actor["log_std"])
        gradient = backward(actor, outputs, slope * distances / deviations, settings.activation)
        gradient["log_std"] = (slope * (distances**2 - 1)).sum(axis=0)
    else:
        logs, rows = log_softmax(outputs[-1]), np.arange(len(actions))
        chosen = logs[rows, actions]
        difference = -np.exp(logs)
        difference[rows, actions] += 1
        gradient = backward(actor, outputs, slope * difference, settings.activation)
    return float(-(chosen * advantages).mean()), gradient, ()


def value_loss_and_gradient(critic: Weights, batch: Arrays, settings: Settings) -> tuple[float, Weights, Arrays]:
    """Return the mean squared error of values against returns, without a half, and its gradient. The batch is the policy's."""
    dtype = critic["layers.0.weight"].dtype
    observations, _, _, returns = batch
    outputs = forward(critic, observations.astype(dtype), settings.activation)
    errors = outputs[-1][:, 0] - returns.astype(dtype)
    gradient = backward(critic, outputs, 2 * errors[:, None] / len(errors), settings.activation)
    return float((errors**2).mean()), gradient, ()
