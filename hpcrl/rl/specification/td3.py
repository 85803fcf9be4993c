"""TD3: the policy, the losses of critics and policy, and their gradients (Fujimoto et al. 2018, arXiv 1802.09477, algorithm 1).

Actions are from -1 to 1 in each of their numbers.
"""

from __future__ import annotations

import numpy as np

from hpcrl.catalogue.algorithms.td3 import Settings
from hpcrl.rl.interfaces import Arrays, Floats, Weights
from hpcrl.rl.specification.networks import backward, forward, input_gradient, named

CRITICS = ("critic1", "critic2")


def greedy(observations: Floats, settings: Settings, actor: Weights) -> Floats:
    """Return the policy's actions (n, actions): tanh of the network's outputs."""
    actions: Floats = np.tanh(forward(actor, observations, settings.activation)[-1])
    return actions


def q_values(critics: Weights, observations: Floats, actions: Floats, settings: Settings) -> list[list[Floats]]:
    """Return the input and the outputs of each layer of both critics; the last outputs are Q (n, 1)."""
    given = np.concatenate([observations, actions], axis=1)
    return [forward(named(critics, name), given, settings.activation) for name in CRITICS]


def targets(target_actor: Weights, target_critics: Weights, batch: Arrays, settings: Settings) -> Floats:
    """Return r + gamma (1 - terminated) min(Q1', Q2')(s', a') (n,), with the copies' values and actions.

    a' is the policy's action with noise, which is scaled and clipped before, and again within the bounds after.
    """
    dtype = target_actor["layers.0.weight"].dtype
    _, _, rewards, following, terminated, noise = (array.astype(dtype) for array in batch)
    smoothing = np.clip(settings.target_noise * noise, -settings.noise_clip, settings.noise_clip)
    actions = np.clip(greedy(following, settings, target_actor) + smoothing, -1, 1)
    first, second = (outputs[-1][:, 0] for outputs in q_values(target_critics, following, actions, settings))
    wanted: Floats = rewards + settings.gamma * (1 - terminated) * np.minimum(first, second)
    return wanted


def critic_loss_and_gradient(
    critics: Weights, batch: Arrays, settings: Settings, target_actor: Weights, target_critics: Weights
) -> tuple[float, Weights, Arrays]:
    """Return the sum of both critics' mean squared errors, and its gradient.

    The batch: observations (n, inputs), actions (n, actions), rewards (n,), next observations (n, inputs), terminated (n,), and
    the noise (n, actions) of the target policy, of standard deviation 1.
    """
    dtype = target_actor["layers.0.weight"].dtype
    wanted = targets(target_actor, target_critics, batch, settings)
    observations, actions = (array.astype(dtype) for array in batch[:2])
    loss = 0.0
    gradient: Weights = {}
    for name, outputs in zip(CRITICS, q_values(critics, observations, actions, settings), strict=True):
        errors = outputs[-1][:, 0] - wanted
        loss += float((errors**2).mean())
        own = backward(named(critics, name), outputs, 2 * errors[:, None] / len(errors), settings.activation)
        gradient |= {f"{name}.{key}": array for key, array in own.items()}
    return loss, gradient, ()


def actor_loss_and_gradient(
    actor: Weights, batch: Arrays, settings: Settings, critics: Weights
) -> tuple[float, Weights, Arrays]:
    """Return minus the mean of the first critic's Q of the policy's actions, and its gradient by the policy's weights."""
    observations, activation = batch[0].astype(actor["layers.0.weight"].dtype), settings.activation
    own = forward(actor, observations, activation)
    actions, critic = np.tanh(own[-1]), named(critics, CRITICS[0])
    outputs = forward(critic, np.concatenate([observations, actions], axis=1), activation)
    slope = np.full_like(outputs[-1], -1 / len(observations))
    by_actions = input_gradient(critic, outputs, slope, activation)[:, observations.shape[1] :]
    return float(-outputs[-1].mean()), backward(actor, own, by_actions * (1 - actions**2), activation), ()
