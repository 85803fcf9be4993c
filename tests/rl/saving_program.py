"""Write weights in a framework's own format, read them with its own reader, and print whether they are the same."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from hpcrl.catalogue.algorithms import ppo, rainbow, vpg
from hpcrl.rl.frameworks import save_weights
from hpcrl.rl.interfaces import Space, Weights
from tests.rl.builders import CARTPOLE, first_weights, made_of

CASES = (
    ("ppo", ppo.Settings(hidden=(8, 6)), CARTPOLE),
    ("rainbow", rainbow.Settings(hidden=(8,), noisy=True), CARTPOLE),
    ("vpg", vpg.Settings(hidden=(8,)), Space(3, 2, bounds=((-1.0, 1.0),) * 2)),
)


def _read(framework: str, path: Path) -> dict[str, Any]:
    if framework == "torch":
        torch = importlib.import_module("torch")
        return {name: tensor.numpy() for name, tensor in torch.load(path, weights_only=True).items()}
    if framework == "mxnet":
        return {name: array.asnumpy() for name, array in importlib.import_module("mxnet").nd.load(str(path)).items()}
    tree = importlib.import_module("flax.serialization").msgpack_restore(path.read_bytes())
    return dict(_flat(tree, []))


def _flat(tree: dict[str, Any], places: list[str]) -> Any:
    """Give the arrays of Flax's parameters by hpcrl's names, (out, in)."""
    for name, each in tree.items():
        if isinstance(each, dict):
            yield from _flat(each, [*places, name])
            continue
        whole = places if not places or not places[-1].isdigit() else [*places[:-1], "layers", places[-1]]
        yield ".".join([*whole, name.replace("kernel", "weight")]), each.T if "kernel" in name else each


def main(framework: str, beside: Path) -> None:
    equal, files = True, set()
    for name, settings, space in CASES:
        algorithm = made_of(name, settings, space)
        weights: Weights = first_weights(algorithm)[algorithm.acts_with]
        path = save_weights(framework, beside, weights)
        assert path is not None
        found = _read(framework, path)
        equal &= found.keys() == weights.keys() and all(np.array_equal(found[key], weights[key]) for key in weights)
        files |= {each.name for each in beside.parent.iterdir() if each.suffix != ".zip"}
    print(json.dumps({"files": sorted(files), "equal": bool(equal)}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
