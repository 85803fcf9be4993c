"""The ranks of a cell, and the checks that they agree."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from hpcrl.errors import HpcrlError
from hpcrl.rl.learner import Collective, Weights


@dataclass(frozen=True)
class Group:
    """This rank and the others; `addresses` is host:port for each rank, for frameworks that connect by themselves."""

    rank: int = 0
    ranks: int = 1
    local_rank: int = 0
    addresses: tuple[str, ...] = ()


def check_same_start(collective: Collective, weights: Weights) -> None:
    """Make sure that every rank starts from the same network and the same weights.

    Raises:
        HpcrlError: they differ; at least one of the differing ranks raises it.
    """
    content = zlib.crc32(b"".join(weights[name].astype(np.float32).tobytes() for name in sorted(weights)))
    # Sixteen bits each: a float32 holds them exactly and averages them to less than 1e-2.
    count = sum(each.size for each in weights.values())
    mine = np.array([count & 0xFFFF, count >> 16, content & 0xFFFF, content >> 16], np.float32)
    strays = np.abs(collective.average_array(mine) - mine) > 1e-2
    if strays[:2].any():
        raise HpcrlError(
            f"rank {collective.rank} of {collective.ranks}: its network has {count} weights, but another rank's has a different number: "
            "all ranks must run the same cell in the same environment"
        )
    if strays.any():
        raise HpcrlError(
            f"rank {collective.rank} of {collective.ranks}: its initial weights differ from those of other ranks: "
            "all ranks must run the same cell in the same environment"
        )


def any_rank(collective: Collective | None, flag: bool) -> bool:
    """Tell whether the answer of any rank is yes; every rank must call this at the same time."""
    if collective is None:
        return flag
    return bool(collective.average_array(np.array([flag], np.float32))[0] > 0)
