"""Rainbow: the projected target, the loss and its gradient (Hessel et al. 2018, arXiv 1710.02298).

Layers after the first may be noisy (Fortunato et al. 2018, arXiv 1706.10295, equations 10 and 11): their weights are
mu + sigma times f(eps_out) f(eps_in)^T. One noise vector has f(eps_in), f(eps_out) of each noisy layer in turn.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcrl.catalogue.algorithms.rainbow import Settings
from hpcrl.rl.interfaces import Arrays, Floats, Weights
from hpcrl.rl.specification.networks import backward, duel, duel_gradient, forward


def support(settings: Settings) -> Floats:
    """Return the atoms' values (atoms,)."""
    return np.linspace(settings.value_minimum, settings.value_maximum, settings.atoms)


def mean_weights(weights: Weights) -> Weights:
    """Return the weights without noise."""
    return {name: array for name, array in weights.items() if not name.endswith("_scale")}


def noisy_weights(weights: Weights, noise: Floats) -> Weights:
    """Return the weights with a noise vector; without noisy layers, the weights."""
    changed = mean_weights(weights)
    for layer, (given, returned) in _noise_of_layers(weights, noise).items():
        names = f"layers.{layer}.weight", f"layers.{layer}.bias"
        changed[names[0]] = weights[names[0]] + weights[f"{names[0]}_scale"] * np.outer(returned, given)
        changed[names[1]] = weights[names[1]] + weights[f"{names[1]}_scale"] * returned
    return changed


def _noise_of_layers(weights: Weights, noise: Floats) -> dict[int, tuple[Floats, Floats]]:
    """Return f(eps_in) and f(eps_out) of each noisy layer."""
    parts, start = {}, 0
    for name, array in weights.items():
        if name.endswith(".weight_scale"):
            outputs, inputs = array.shape
            values = noise[start : start + inputs + outputs].astype(array.dtype)
            parts[int(name.split(".")[1])] = values[:inputs], values[inputs:]
            start += inputs + outputs
    return parts


def log_probabilities(weights: Weights, observations: Floats, settings: Settings) -> tuple[list[Floats], Floats]:
    """Return the outputs of all layers, and the logarithms of the distributions (n, actions, atoms)."""
    outputs = forward(weights, observations)
    logits = outputs[-1].reshape(len(observations), -1, settings.atoms)
    if settings.dueling:
        logits = duel(logits)
    shifted = logits - logits.max(axis=2, keepdims=True)
    return outputs, shifted - np.log(np.exp(shifted).sum(axis=2, keepdims=True))


def q_values(weights: Weights, observations: Floats, settings: Settings) -> Floats:
    """Return Q (n, actions), the means of the distributions."""
    if settings.distributional:
        logs = log_probabilities(weights, observations, settings)[1]
        means: Floats = np.exp(logs) @ support(settings).astype(logs.dtype)
        return means
    output = forward(weights, observations)[-1]
    return duel(output) if settings.dueling else output


def greedy(observations: Floats, settings: Settings, online: Weights) -> NDArray[np.int64]:
    """Return the greedy actions (n,), without noise."""
    actions: NDArray[np.int64] = q_values(mean_weights(online), observations, settings).argmax(axis=1)
    return actions


def sample(observations: Floats, noise: Floats, settings: Settings, online: Weights) -> Arrays:
    """Return the greedy actions (n,) of the network with a noise vector, as a tuple of one."""
    return (q_values(noisy_weights(online, noise), observations, settings).argmax(axis=1),)


def project(probabilities: Floats, returns: Floats, discounts: Floats, settings: Settings) -> tuple[Floats, Floats]:
    """Return the distributions (n, atoms) of returns + discounts Z on the support, and the mass (n,) that lay outside of it.

    Bellemare et al. 2017, arXiv 1707.06887, equation 7: an atom's mass goes to its two neighbours in proportion to
    their nearness, so that a value on an atom gives it all.
    """
    atoms = support(settings).astype(probabilities.dtype)
    values = returns[:, None] + discounts[:, None] * atoms
    outside = probabilities * ((values < atoms[0]) | (values > atoms[-1]))
    near = 1 - np.abs(np.clip(values, atoms[0], atoms[-1])[:, None, :] - atoms[:, None]) / (atoms[1] - atoms[0])
    return (np.clip(near, 0, 1) * probabilities[:, None, :]).sum(axis=2), outside.sum(axis=1)


def loss_and_gradient(
    online: Weights, batch: Arrays, settings: Settings, target: Weights
) -> tuple[float, Weights, Arrays]:
    """Return the weighted mean loss, its gradient, and as aux the loss (n,) of each transition and the mass outside (n,).

    The batch: observations (n, inputs), actions (n,), n-step returns (n,), the observations (n, inputs) after them,
    discounts (n,): gamma^k, or 0 where the episode terminated; importance weights (n,); noise of the online network and
    of the target network (k,). Distributional: cross-entropy; otherwise Huber's loss.
    """
    observations, actions, returns, following, discounts, importance, noise, target_noise = batch
    dtype = online["layers.0.weight"].dtype
    observations, returns, following, discounts, importance = (
        array.astype(dtype) for array in (observations, returns, following, discounts, importance)
    )
    rows, own, other = np.arange(len(actions)), noisy_weights(online, noise), noisy_weights(target, target_noise)
    chooser = own if settings.double else other
    best = q_values(chooser, following, settings).argmax(axis=1)
    if settings.distributional:
        future = np.exp(log_probabilities(other, following, settings)[1][rows, best])
        wanted, outside = project(future, returns, discounts, settings)
        outputs, logs = log_probabilities(own, observations, settings)
        losses = -(wanted * logs[rows, actions]).sum(axis=1)
        delta = np.zeros_like(logs)
        slope = np.exp(logs[rows, actions]) * wanted.sum(axis=1, keepdims=True) - wanted
        delta[rows, actions] = slope * (importance / len(rows))[:, None]
        if settings.dueling:
            delta = duel_gradient(delta)
        delta = delta.reshape(len(rows), -1)
    else:
        wanted = returns + discounts * q_values(other, following, settings)[rows, best]
        outside = np.zeros_like(returns)
        outputs = forward(own, observations)
        values = duel(outputs[-1]) if settings.dueling else outputs[-1]
        errors = values[rows, actions] - wanted
        losses = np.where(np.abs(errors) <= 1, errors**2 / 2, np.abs(errors) - 0.5)
        delta = np.zeros_like(values)
        delta[rows, actions] = np.clip(errors, -1, 1) * importance / len(rows)
        if settings.dueling:
            delta = duel_gradient(delta)
    gradient = backward(own, outputs, delta)
    for layer, (given, returned) in _noise_of_layers(online, noise).items():
        names = f"layers.{layer}.weight", f"layers.{layer}.bias"
        gradient[f"{names[0]}_scale"] = gradient[names[0]] * np.outer(returned, given)
        gradient[f"{names[1]}_scale"] = gradient[names[1]] * returned
    return float((importance * losses).mean()), {name: gradient[name] for name in online}, (losses, outside)
