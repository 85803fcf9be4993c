"""hpcrl's own environments, by the names that studies give them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class OwnEnvironment:
    """An environment of hpcrl, described where its packages are not installed.

    `entry` is where Gymnasium finds its class, and `options` are the class's arguments. It has `actions` discrete actions, observations of
    `shape` and `dtype`, and episodes of at most `limit` steps.
    """

    entry: str
    options: dict[str, Any]
    actions: int
    shape: tuple[int, ...]
    dtype: str
    limit: int


def _box_slider(size: int) -> OwnEnvironment:
    return OwnEnvironment("hpcrl.rl.envs.box_slider:BoxSlider", {"size": size}, 25, (size, size, 3), "uint8", 80)


OWN_ENVIRONMENTS = {"BoxSlider-v0": _box_slider(128), "BoxSlider64-v0": _box_slider(64)}
