"""What lists of layers have in common, whatever framework their arrays are of: weight and bias of each layer in turn.

Noisy layers, which are all but the first, also have the scales of the noise of both.
"""

from __future__ import annotations

from typing import Any


def halves(layers: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return the layers of the two networks of a group, which have equally many."""
    return layers[: len(layers) // 2], layers[len(layers) // 2 :]


def with_log_std(layers: list[Any]) -> tuple[list[Any], Any]:
    """Return the layers of a network, and its log standard deviations: the array at the end that is no pair's. None if it has none."""
    return (layers[:-1], layers[-1]) if len(layers) % 2 else (layers, None)


def mean_layers(layers: list[Any], noisy: bool) -> list[Any]:
    """Return the layers without the scales of their noise."""
    if not noisy:
        return layers
    return [*layers[:2], *[array for start in range(2, len(layers), 4) for array in layers[start : start + 2]]]


def noisy_layers(layers: list[Any], noise: Any, noisy: bool, inputs_first: bool = False) -> list[Any]:
    """Return the layers with a noise vector: f(eps_in), f(eps_out) of each noisy layer in turn.

    Weights are (out, in), or with `inputs_first` (in, out). For arrays that can be indexed as NumPy's.
    """
    if not noisy:
        return layers
    changed, begin = layers[:2], 0
    for start in range(2, len(layers), 4):
        weight, bias, weight_scale, bias_scale = layers[start : start + 4]
        outputs, inputs = weight.shape[::-1] if inputs_first else weight.shape
        given, returned = noise[begin : begin + inputs], noise[begin + inputs : begin + inputs + outputs]
        outer = given[:, None] * returned if inputs_first else returned[:, None] * given
        changed = [*changed, weight + weight_scale * outer, bias + bias_scale * returned]
        begin += inputs + outputs
    return changed
