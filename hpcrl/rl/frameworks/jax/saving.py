"""Weights in a file of Flax: its MessagePack, which ``flax.serialization.msgpack_restore`` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flax import serialization

from hpcrl.rl.interfaces import Weights
from hpcrl.rl.weights import inputs_first


def tree(weights: Weights) -> dict[str, Any]:
    """Return the parameters as Flax has them: ``{"0": {"kernel": (in, out), "bias": (out,)}, ...}``, below a network's name if it has one."""
    root: dict[str, Any] = {}
    for name, array in weights.items():
        *places, last = [part for part in name.split(".") if part != "layers"]
        below = root
        for place in places:
            below = below.setdefault(place, {})
        below[last.replace("weight", "kernel")] = inputs_first(array).copy() if "weight" in last else array
    return root


SUFFIX = ".msgpack"


def save(path: Path, weights: Weights) -> None:
    """Write the parameters."""
    path.write_bytes(serialization.msgpack_serialize(tree(weights)))
