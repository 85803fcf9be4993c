"""Weights in a file of PyTorch: a state dict, which ``torch.load(file, weights_only=True)`` reads."""

from __future__ import annotations

from pathlib import Path

import torch

from hpcrl.rl.interfaces import Weights

SUFFIX = ".pt"


def save(path: Path, weights: Weights) -> None:
    """Write weights by hpcrl's names: (out, in), which is PyTorch's own layout."""
    torch.save({name: torch.from_numpy(array.copy()) for name, array in weights.items()}, path)
