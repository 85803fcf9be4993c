"""Weights in a file of MXNet: named arrays, which ``mxnet.nd.load(file)`` reads."""

from __future__ import annotations

from pathlib import Path

import mxnet

from hpcrl.rl.interfaces import Weights

SUFFIX = ".params"


def save(path: Path, weights: Weights) -> None:
    """Write weights by hpcrl's names: (out, in), which is MXNet's own layout."""
    mxnet.nd.save(str(path), {name: mxnet.nd.array(array) for name, array in weights.items()})
