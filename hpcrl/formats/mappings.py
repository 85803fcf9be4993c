"""Columns of a dataset, and texts of a record, that contain a mapping as JSON: a stranger may have written them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from hpcrl.errors import UsageError
from hpcrl.formats.shapes import COUNT, MAX_WORDS, NUMBER, TEXT, first_wrong

HARDWARE = {
    "cpu": TEXT,
    "threads": COUNT,
    "memory": NUMBER,
    "kernel": TEXT,
    "gpu_driver": TEXT,
    "os": TEXT,
    "os_version": TEXT,
    "virtual": TEXT,
    "host": TEXT,
}
_CONFIG = {
    "algorithm": TEXT,
    "framework": TEXT,
    "execution": TEXT,
    "topology": TEXT,
    "actors": COUNT,
    "step_latency": NUMBER,
}
# The columns of `cells`, and the types of what reports read of them.
COLUMNS: dict[str, Mapping[str, str]] = {
    "config": _CONFIG,
    "settings": {},
    "versions": {},
    "variables": {},
    "hardware": HARDWARE,
    "messages": {},
    "surroundings": {},
}
_LISTS = {"hardware": ("gpus", str), "messages": ("transitions", int)}


def first_wrong_mapping(column: str, text: str, workload: str = "") -> str | None:
    """Return what is wrong with the text of a column, as in ``expected a mapping as JSON``; None if nothing is.

    Args:
        workload: of the row. The axes of a user's own `command` may have any values.
    """
    if len(text) > MAX_WORDS:
        return f"expected at most {MAX_WORDS} characters, got {len(text)}"
    try:
        known = json.loads(text)
    except (ValueError, RecursionError):
        known = None
    if not isinstance(known, dict):
        return "expected a mapping as JSON"
    return None if (column, workload) == ("config", "command") else first_wrong_value(column, known)


def first_wrong_value(column: str, known: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the first value of another type than its name has in a column; None if nothing is."""
    if wrong := first_wrong(known, COLUMNS[column]):
        return wrong
    name, kind = _LISTS.get(column, ("", str))
    values = known.get(name) or []
    if not (isinstance(values, list) and all(type(value) is kind for value in values)):
        return f"{name!r}: expected a list of {'names' if kind is str else 'whole numbers'}"
    return None


def check_mappings(dataset: Path, cells: pa.Table) -> None:
    """Check every different text in the columns of the table ``cells`` of a dataset.

    Raises:
        UsageError: one is not what its column should hold.
    """
    for column in COLUMNS:
        pairs = cells.select(["workload", column]).group_by(["workload", column]).aggregate([])
        for workload, text in zip(*(pairs[name].to_pylist() for name in pairs.column_names), strict=True):
            if text is not None and (wrong := first_wrong_mapping(column, text, workload)):
                raise UsageError(
                    f"{dataset}: column {column!r} of its cells contains what no plan gives ({wrong}): do not trust this dataset"
                )
