"""The names, shapes and initial values of an algorithm's weights, the same for every framework."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.rl.interfaces import Algorithm, Network, Weights


def layer_names(network: Network) -> list[tuple[str, str]]:
    """Return the names of weight and bias of each layer, as in ``layers.0.weight`` or ``actor.layers.0.weight``."""
    prefix = f"{network.name}." if network.name else ""
    return [(f"{prefix}layers.{layer}.weight", f"{prefix}layers.{layer}.bias") for layer in range(len(network.shapes))]


def log_std_name(network: Network) -> str:
    """Return the name of the log standard deviations of the outputs."""
    return f"{network.name}.log_std" if network.name else "log_std"


def initial_weights(algorithm: Algorithm, generator: np.random.Generator) -> dict[str, Weights]:
    """Draw the initial weights of every group, the same for every framework.

    Uniform in +-1/sqrt(fan_in), weights and biases, is PyTorch's default for linear layers and convolutions (Kaiming uniform with
    a = sqrt(5)); orthogonal weights with zero biases are those of Schulman's PPO code. The initialiser alone can decide
    whether DQN learns CartPole, so no framework uses its own.
    """
    weights: dict[str, Weights] = {group: {} for group in algorithm.groups}
    for group, networks in algorithm.groups.items():
        for network in networks:
            weights[group] |= _uniform(network, generator) if network.gain is None else _orthogonal(network, generator)
    return weights


def _uniform(network: Network, generator: np.random.Generator) -> Weights:
    weights: Weights = {}
    for (weight, bias), shape in zip(layer_names(network), network.shapes, strict=True):
        bound = 1.0 / np.sqrt(math.prod(shape[1:]))
        weights[weight] = generator.uniform(-bound, bound, shape).astype(np.float32)
        weights[bias] = generator.uniform(-bound, bound, shape[0]).astype(np.float32)
    return with_scales(network, weights)


def with_scales(network: Network, weights: Weights) -> Weights:
    """Add the initial scales of noise to weights and biases, each after its layer: noise / sqrt(inputs).

    Fortunato et al. 2018, arXiv 1706.10295, section 3.2; many codes divide the bias's scale by sqrt(outputs) instead.
    Or add the initial log standard deviations of the outputs at the end.
    """
    if network.log_std is not None:
        return weights | {log_std_name(network): np.full(network.outputs, network.log_std, np.float32)}
    if network.noise is None:
        return weights
    whole: Weights = {}
    for layer, (weight, bias) in enumerate(layer_names(network)):
        whole |= {weight: weights[weight], bias: weights[bias]}
        if layer:
            scale = network.noise / np.sqrt(weights[weight].shape[1])
            whole[f"{weight}_scale"] = np.full_like(weights[weight], scale)
            whole[f"{bias}_scale"] = np.full_like(weights[bias], scale)
    return whole


def _orthogonal(network: Network, generator: np.random.Generator) -> Weights:
    """Saxe et al. 2014, arXiv 1312.6120: Q of the QR decomposition of a normal matrix, with the signs of R's diagonal."""
    weights: Weights = {}
    for layer, ((weight, bias), (outputs, inputs)) in enumerate(zip(layer_names(network), network.shapes, strict=True)):
        q, r = np.linalg.qr(generator.normal(size=(max(inputs, outputs), min(inputs, outputs))))
        q *= np.sign(np.diag(r))
        gain = network.gain if layer == len(network.hidden) else np.sqrt(2)
        weights[weight] = (gain * (q if outputs >= inputs else q.T)).astype(np.float32)
        weights[bias] = np.zeros(outputs, np.float32)
    return weights


def inputs_first(array: NDArray[Any]) -> NDArray[Any]:
    """Return a weight (out, in) as (in, out), and that of a convolution (out, in, kernel, kernel) as (kernel, kernel, in, out)."""
    return array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T


def outputs_first(array: NDArray[Any]) -> NDArray[Any]:
    """Return what :func:`inputs_first` was given."""
    return array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T


def pack(weights: Weights, transposed: bool = False, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """Return all weights as one flat float32 vector, in `out` if it is given; `transposed` stores each weight with its inputs first."""
    arrays = [inputs_first(array) if transposed else array for array in weights.values()]
    whole = np.empty(sum(array.size for array in arrays), np.float32) if out is None else out
    return np.concatenate([array.ravel() for array in arrays], out=whole, casting="same_kind")


def views(vector: NDArray[np.float32], like: Weights, transposed: bool = False) -> Weights:
    """Cut a flat vector into parts with the names and shapes of `like`, without a copy: the inverse of :func:`pack`."""
    weights: Weights = {}
    end = 0
    for name, array in like.items():
        part, end = vector[end : end + array.size], end + array.size
        if transposed:
            weights[name] = outputs_first(part.reshape(inputs_first(array).shape))
        else:
            weights[name] = part.reshape(array.shape)
    return weights


def unpack(vector: NDArray[np.float32], like: Weights, transposed: bool = False) -> Weights:
    """Return copies of :func:`views`."""
    return {name: view.copy() for name, view in views(vector, like, transposed).items()}
