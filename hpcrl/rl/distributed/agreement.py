"""Questions that the ranks of a cell answer together."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrl.errors import HpcrlError
from hpcrl.rl.distributed.collective import Collective


def check_same_start(collective: Collective, weights: Mapping[str, NDArray[Any]]) -> None:
    """Make sure that every rank starts from the same network and the same weights.

    Raises:
        HpcrlError: they differ; at least one of the differing ranks raises it.
    """
    content = zlib.crc32(b"".join(weights[name].astype(np.float32).tobytes() for name in sorted(weights)))
    # Sixteen bits each: a float32 holds them exactly and averages them to less than 1e-2.
    count = sum(array.size for array in weights.values())
    mine = np.array([count & 0xFFFF, count >> 16, content & 0xFFFF, content >> 16], np.float32)
    differing = np.abs(collective.average_array(mine) - mine) > 1e-2
    if differing[:2].any():
        raise HpcrlError(
            f"rank {collective.rank} of {collective.ranks}: its network has {count} weights, but another rank's has a different number: "
            "all ranks must run the same cell in the same environment"
        )
    if differing.any():
        raise HpcrlError(
            f"rank {collective.rank} of {collective.ranks}: its initial weights differ from those of other ranks: "
            "all ranks must run the same cell in the same environment"
        )


def any_rank(collective: Collective | None, flag: bool) -> bool:
    """Tell whether the answer of any rank is yes; every rank must call this at the same time."""
    if collective is None:
        return flag
    return bool(collective.average_array(np.array([flag], np.float32))[0] > 0)
