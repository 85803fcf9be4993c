"""Convolutions without padding: forward and backward.

Images are flat (n, inputs), of a square (side, side, channels) in that order. Weights are (out, in, kernel, kernel).
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from hpcrl.catalogue.images import STRIDES, side_of
from hpcrl.rl.interfaces import Floats, Observations


def scaled(observations: Observations, weight: Floats) -> Floats:
    """Return observations of 0 to 255 as values from 0 to 1, in the type of the weights."""
    values: Floats = observations.astype(weight.dtype) / weight.dtype.type(255)
    return values


def convolve(images: Floats, weight: Floats, bias: Floats) -> Floats:
    """Return the sums of weight times image at each place, plus bias: flat images with a channel for each filter."""
    sums: Floats = _patches(images, weight) @ weight.reshape(len(weight), -1).T + bias
    return sums.reshape(len(images), -1)


def gradients(images: Floats, weight: Floats, delta: Floats) -> tuple[Floats, Floats]:
    """Return the gradients of weight and bias for the gradient `delta` of what :func:`convolve` returned."""
    rows = delta.reshape(-1, len(weight))
    return (rows.T @ _patches(images, weight)).reshape(weight.shape), rows.sum(axis=0)


def image_gradient(images: Floats, weight: Floats, delta: Floats) -> Floats:
    """Return the gradient of the images for the gradient `delta` of what :func:`convolve` returned."""
    outputs, _, kernel, _ = weight.shape
    side, stride = side_of(delta.shape[1], outputs), STRIDES[kernel]
    delta, gradient = delta.reshape(-1, side, side, outputs), np.zeros_like(_squares(images, weight))
    span = stride * (side - 1) + 1
    for row, column in np.ndindex(kernel, kernel):
        gradient[:, row : row + span : stride, column : column + span : stride] += delta @ weight[:, :, row, column]
    return gradient.reshape(images.shape)


def _squares(images: Floats, weight: Floats) -> Floats:
    channels = weight.shape[1]
    side = side_of(images.shape[1], channels)
    return images.reshape(-1, side, side, channels)


def _patches(images: Floats, weight: Floats) -> Floats:
    """Return what the filters see at each place, a row each: (n * side * side, in * kernel * kernel)."""
    kernel = weight.shape[-1]
    stride = STRIDES[kernel]
    seen = sliding_window_view(_squares(images, weight), (kernel, kernel), axis=(1, 2))[:, ::stride, ::stride]
    return seen.reshape(-1, weight[0].size)
