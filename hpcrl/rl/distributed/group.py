"""The ranks of a cell."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """This rank and the others; `addresses` is host:port for each rank, for frameworks that connect by themselves."""

    rank: int = 0
    ranks: int = 1
    local_rank: int = 0
    addresses: tuple[str, ...] = ()
