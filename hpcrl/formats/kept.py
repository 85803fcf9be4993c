"""Small results of a host that the cells of a plan share: JSON files of numbers. Another user may have written them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from hpcrl.errors import HpcrlError
from hpcrl.formats.files import open_of_stranger, write_atomically
from hpcrl.formats.shapes import NUMBER, is_kind

_MOST_BYTES = 64 * 1024


def kept_numbers(path: Path) -> dict[str, float] | None:
    """Return the numbers of a file; None if it is missing, or is not a mapping of names to finite numbers."""
    try:
        with open_of_stranger(path, most=_MOST_BYTES) as file:
            content = json.load(file)
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or not all(
        is_kind(NUMBER, value) and math.isfinite(value) for value in content.values()
    ):
        return None
    return {name: float(value) for name, value in content.items()}


def keep_numbers(path: Path, numbers: Mapping[str, float | None]) -> None:
    """Write a file, but not through a directory that is a symbolic link. The cells also run if it cannot be written."""
    try:
        if not path.parent.is_symlink():
            write_atomically(path, json.dumps(numbers))
    except (OSError, HpcrlError):
        pass  # a full disk: the cell that measured still has the result
