"""Rainbow's loss in MXNet; the formulae are those of hpcrl.rl.specification.rainbow."""

from __future__ import annotations

from typing import Any

from mxnet import autograd

from hpcrl.rl.frameworks.mxnet.layers import Layers, duel, forward, noisy_layers
from hpcrl.rl.layers import mean_layers


def _logs(F: Any, network: Layers, observations: Any, settings: Any) -> Any:
    """Return the logarithms of the distributions (n, actions, atoms)."""
    logits = F.reshape(
        forward(F, network, observations), shape=(-1, network[-1].shape[0] // settings.atoms, settings.atoms)
    )
    return F.log_softmax(duel(F, logits) if settings.dueling else logits, axis=2)


def _actions(network: Layers, settings: Any) -> int:
    columns = network[-1].shape[0] // (settings.atoms if settings.distributional else 1)
    return columns - int(settings.dueling)


def _atoms(F: Any, settings: Any) -> tuple[Any, Any, float]:
    """Return the atoms' numbers, their values (atoms,), and their distance."""
    numbers = F.arange(settings.atoms)
    distance = (settings.value_maximum - settings.value_minimum) / (settings.atoms - 1)
    return numbers, settings.value_minimum + numbers * distance, distance


def q_values(F: Any, network: Layers, observations: Any, settings: Any) -> Any:
    """Return Q (n, actions)."""
    if settings.distributional:
        return F.dot(F.exp(_logs(F, network, observations, settings)), _atoms(F, settings)[1])
    output = forward(F, network, observations)
    return duel(F, output) if settings.dueling else output


def greedy(F: Any, observations: Any, settings: Any, online: Layers) -> Any:
    """Return the greedy actions (n,), without noise."""
    return F.argmax(q_values(F, mean_layers(online, settings.noisy), observations, settings), axis=1)


def sample(F: Any, observations: Any, noise: Any, settings: Any, online: Layers) -> Any:
    """Return the greedy actions (n,) of the network with a noise vector."""
    return F.argmax(q_values(F, noisy_layers(F, online, noise, settings.noisy), observations, settings), axis=1)


def project(F: Any, probabilities: Any, returns: Any, discounts: Any, settings: Any) -> tuple[Any, Any]:
    """Return the distributions (n, atoms) of returns + discounts Z, and the mass (n,) that lay outside of the support."""
    numbers, values, distance = _atoms(F, settings)
    moved = F.broadcast_mul(F.expand_dims(discounts, axis=1), F.expand_dims(values, axis=0))
    places = (F.broadcast_add(F.expand_dims(returns, axis=1), moved) - settings.value_minimum) / distance
    inside = F.clip(places, 0, settings.atoms - 1)
    apart = F.broadcast_sub(F.expand_dims(inside, axis=1), F.reshape(numbers, shape=(1, settings.atoms, 1)))
    near = F.clip(1 - F.abs(apart), 0, 1)
    wanted = F.sum(F.broadcast_mul(near, F.expand_dims(probabilities, axis=1)), axis=2)
    return wanted, F.sum(probabilities * (places != inside), axis=1)


def loss(F: Any, online: Layers, batch: Any, settings: Any, target: Layers) -> tuple[Any, ...]:
    """Return the weighted mean cross-entropy (or Huber loss), and each transition's loss and mass outside."""
    observations, actions, returns, following, discounts, importance, noise, target_noise = batch
    own = noisy_layers(F, online, noise, settings.noisy)
    # Not recorded in imperative mode: the backward pass through argmax and duelling crashes MXNet.
    with autograd.pause():
        other = noisy_layers(F, target, target_noise, settings.noisy)
        best = F.argmax(q_values(F, own if settings.double else other, following, settings), axis=1)
        if settings.distributional:
            chosen = _chosen(F, _logs(F, other, following, settings), best, _actions(online, settings))
            wanted, outside = project(F, F.exp(chosen), returns, discounts, settings)
        else:
            wanted = returns + discounts * F.pick(q_values(F, other, following, settings), best, axis=1)
            outside = F.zeros_like(returns)
    wanted = F.BlockGrad(wanted)
    if settings.distributional:
        logs = _chosen(F, _logs(F, own, observations, settings), actions, _actions(online, settings))
        losses = -F.sum(wanted * logs, axis=1)
    else:
        errors = F.pick(q_values(F, own, observations, settings), actions, axis=1) - wanted
        losses = F.smooth_l1(errors, scalar=1.0)
    return F.mean(importance * losses), F.BlockGrad(losses), F.BlockGrad(outside)


def _chosen(F: Any, values: Any, actions: Any, count: int) -> Any:
    """Return the values (n, atoms) of one action of each row of (n, actions, atoms)."""
    picked = F.expand_dims(F.one_hot(actions, depth=count), axis=2)
    return F.sum(F.broadcast_mul(values, picked), axis=1)
