"""The number of steps from which a mode with a longer start and faster steps takes less time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import pandas as pd

_WORTH_SAYING = 0.05  # of a run's wall time, and of the time per step


@dataclass(frozen=True)
class Cost:
    """Mean times of a configuration over its completed seeds, in seconds: outside of training, per step, and in all."""

    framework: str
    what: str
    hex: str
    dash: str
    outside: float
    step: float
    wall: float
    steps: float

    def after(self, steps: float) -> float:
        """Return the wall time of so many steps."""
        return self.outside + self.step * steps


@dataclass(frozen=True)
class BreakEven:
    """`late` starts later than `early`, and takes less time from `steps` on."""

    early: Cost
    late: Cost
    steps: float

    def __str__(self) -> str:
        return (
            f"{self.late.what} takes less time than {self.early.what} from about {float(f'{self.steps:.2g}'):,.0f} steps: outside of "
            f"training it takes {self.late.outside - self.early.outside:.1f} s more, and "
            f"{1e3 * (self.early.step - self.late.step):.3g} ms less per step."
        )


def costs(part: pd.DataFrame) -> list[Cost]:
    """Return the costs of the configurations of one place.

    Args:
        part: completed cells with the columns of `with_groups`.
    """
    known = part[(part["steps"] > 0) & part["wall_time"].notna() & part["training_time"].notna()]
    return [
        Cost(
            framework=str(framework),
            what=str(what),
            hex=str(group["hex"].iloc[0]) if "hex" in group else "",
            dash=str(group["dash"].iloc[0]) if "dash" in group else "",
            outside=float((group["wall_time"] - group["training_time"]).mean()),
            step=float((group["training_time"] / group["steps"]).mean()),
            wall=float(group["wall_time"].mean()),
            steps=float(group["steps"].mean()),
        )
        for (framework, what), group in known.groupby(["colour", "what"], sort=True)
    ]


def break_evens(found: Sequence[Cost]) -> list[BreakEven]:
    """Return the break-even points of the modes of one framework whose starts and steps differ enough to matter."""
    return [
        BreakEven(early, late, (late.outside - early.outside) / (early.step - late.step))
        for early, late in permutations(found, 2)
        if early.framework == late.framework
        and late.outside - early.outside > _WORTH_SAYING * late.wall
        and early.step - late.step > _WORTH_SAYING * early.step
    ]
