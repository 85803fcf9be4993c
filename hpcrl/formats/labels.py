"""Names of cells for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

# An algorithm, or a topology with its actors, has settings of its own.
SETTLING = ("algorithm", "topology", "actors")


def label(config: Mapping[str, Any], axes: Mapping[str, Any] | None = None) -> str:
    """Name a cell for people by its configuration: ``torch lazy seed 2``.

    Args:
        axes: the axes of its study. What an axis sets together with the algorithm or the topology is left out.
    """
    implied = {
        key
        for options in (axes or {}).values()
        if isinstance(options, list) and len({_settling(option) for option in options} - {None}) == len(options)
        for option in options
        for key in option
        if key not in SETTLING
    }
    values = [
        f"{key} {value}" if not isinstance(value, str) else value
        for key, value in config.items()
        if value is not None and key not in implied
    ]
    return " ".join(values)


def _settling(option: Any) -> tuple[str, ...] | None:
    """Return what the option of an axis sets that settles its other settings; None if it sets nothing of the kind."""
    if not isinstance(option, dict) or not set(SETTLING) & set(option):
        return None
    return tuple(str(option.get(name)) for name in SETTLING)


def label_of_resources(resources: Mapping[str, Any], names: Iterable[str]) -> str:
    """Name some of a cell's resources for people: ``(2 GPUs, a100, horovod)``."""
    words = {"cpus": "core", "gpus": "GPU", "nodes": "node", "tasks": "rank"}
    parts = []
    for name in names:
        value = resources.get(name)
        if value is None or value is False or (name == "parallelism" and value == "none"):
            continue
        if value is True:
            parts.append(name)
        elif name in words:
            parts.append(f"{value} {words[name]}{'' if value == 1 else 's'}")
        else:
            parts.append({"memory": f"{value} MiB", "time": f"{value} s"}.get(name, str(value)))
    return f"({', '.join(parts)})" if parts else ""
