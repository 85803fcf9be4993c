"""What the jobs of a plan wait for."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

# Nothing; each job of cells for the one before; the stages for each other; or both.
Chain: TypeAlias = Literal["parallel", "sequential", "staged", "staged-sequential"]
CHAINS: tuple[Chain, ...] = get_args(Chain)
