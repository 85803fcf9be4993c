"""Checkpoints: named arrays in one NumPy archive, written completely or not at all."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

NamedArrays = dict[str, NDArray[Any]]


def save(path: Path, arrays: NamedArrays, facts: dict[str, Any]) -> None:
    """Write arrays and plain facts; raises OSError if they cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{path.name}.*"):  # of a process that was killed meanwhile
        left.unlink(missing_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            np.savez(
                file,
                allow_pickle=False,
                **{"facts": np.frombuffer(json.dumps(facts).encode(), np.uint8), **arrays},
            )
        os.replace(temporary, path)  # noqa: PTH105
    finally:
        temporary.unlink(missing_ok=True)


def load(path: Path) -> tuple[NamedArrays, dict[str, Any]] | None:
    """Read a checkpoint; None if there is none or it cannot be read (then training starts from scratch)."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        return arrays, json.loads(arrays.pop("facts").tobytes())
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def nested(prefix: str, arrays: NamedArrays) -> NamedArrays:
    """Add a prefix to the names of a part's arrays."""
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def part(prefix: str, arrays: NamedArrays) -> NamedArrays:
    """Return a part's arrays, without the prefix."""
    return {name.removeprefix(f"{prefix}/"): array for name, array in arrays.items() if name.startswith(f"{prefix}/")}


def optimizer_state(group: str, steps: int, slots: Sequence[NDArray[Any]]) -> NamedArrays:
    """Return the state of the optimiser of a group of weights as arrays."""
    numbered = {str(number): array for number, array in enumerate(slots)}
    return nested(f"optimizer/{group}", {"steps": np.array([steps], np.float64), **numbered})


def optimizer_part(group: str, arrays: NamedArrays) -> tuple[int, list[NDArray[Any]]]:
    """Return the steps and slots that :func:`optimizer_state` stored."""
    stored = part(f"optimizer/{group}", arrays)
    return int(stored.pop("steps")[0]), [stored[str(number)] for number in range(len(stored))]
