"""Checkpoints: named arrays in one NumPy archive, written whole or not at all."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]


def save(path: Path, arrays: Arrays, facts: dict[str, Any]) -> None:
    """Write arrays and plain facts; raises OSError where the disk does not take them."""
    path.parent.mkdir(parents=True, exist_ok=True)
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


def load(path: Path) -> tuple[Arrays, dict[str, Any]] | None:
    """Read a checkpoint; None where there is none, or one that cannot be read (training then starts anew)."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        return arrays, json.loads(arrays.pop("facts").tobytes())
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def nested(prefix: str, arrays: Arrays) -> Arrays:
    """Put a part's arrays under a prefix."""
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def part(prefix: str, arrays: Arrays) -> Arrays:
    """Take a part's arrays out again."""
    return {name.removeprefix(f"{prefix}/"): array for name, array in arrays.items() if name.startswith(f"{prefix}/")}
