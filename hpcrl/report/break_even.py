"""The number of steps from which a mode with a longer start and faster steps takes less time."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import pandas as pd

from hpcrl.report.design import in_short
from hpcrl.report.statistics import difference

_WORTH_SAYING = 0.05  # of a run's wall time, and of the time per step


@dataclass(frozen=True)
class Cost:
    """Times of a configuration, in seconds.

    Args:
        before_and_after: of each completed seed, the time outside of training and its evaluations.
        per_step: of each completed seed, the time of a step with its share of the evaluations, whose number grows with the steps.
        wall, steps: means over the seeds.
        work: the settings that are numbers, which tell how much is done: modes of one piece of work are compared.
    """

    framework: str
    what: str
    hex: str
    dash: str
    before_and_after: tuple[float, ...]
    per_step: tuple[float, ...]
    wall: float
    steps: float
    work: tuple[tuple[str, float], ...] = ()

    @property
    def outside(self) -> float:
        return float(np.mean(self.before_and_after))

    @property
    def step(self) -> float:
        return float(np.mean(self.per_step))

    def after(self, steps: float) -> float:
        """Return the wall time of so many steps."""
        return self.outside + self.step * steps


@dataclass(frozen=True)
class BreakEven:
    """`late` starts later than `early`, and takes less time from `steps` on.

    Args:
        low, high: the interval of `steps`; None if one of the two has a single run.
    """

    early: Cost
    late: Cost
    steps: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        interval = (
            "one run, not enough for an interval"
            if self.low is None or self.high is None
            else f"95 % interval {_rounded(self.low, 3)} to {_rounded(self.high, 3)}"
        )
        return (
            f"{self.late.what} takes less time than {self.early.what} from about {_rounded(self.steps)} steps ({interval}): outside of "
            f"training and its evaluations it takes {in_short(self.late.outside - self.early.outside)} s more, and "
            f"{1e3 * (self.early.step - self.late.step):.3g} ms less per step."
        )


def costs(part: pd.DataFrame) -> list[Cost]:
    """Return the costs of the configurations of one place.

    Args:
        part: completed cells with the columns of `with_groups`.
    """
    known = part[(part["steps"] > 0) & part["wall_time"].notna() & part["training_time"].notna()]
    known = known.assign(spent=known["training_time"] + known["evaluation_time"].fillna(0.0))
    return [
        Cost(
            framework=str(framework),
            what=str(what),
            hex=str(group["hex"].iloc[0]) if "hex" in group else "",
            dash=str(group["dash"].iloc[0]) if "dash" in group else "",
            before_and_after=tuple((group["wall_time"] - group["spent"]).astype(float)),
            per_step=tuple((group["spent"] / group["steps"]).astype(float)),
            wall=float(group["wall_time"].mean()),
            steps=float(group["steps"].mean()),
            work=_work(group["config"].iloc[0]) if "config" in group else (),
        )
        for (framework, what), group in known.groupby(["colour", "what"], sort=True)
    ]


def _work(config: str) -> tuple[tuple[str, float], ...]:
    settings = json.loads(config).items()
    return tuple(sorted((key, value) for key, value in settings if key != "seed" and type(value) in (int, float)))


def break_evens(found: Sequence[Cost]) -> list[BreakEven]:
    """Return the break-even points of the modes of one framework whose starts and steps are shown to differ, and enough to matter.

    Modes differ in words only, such as `eager` and `lazy`: a step of 64 environments is other work than one of 16.

    The interval of the quotient follows from those of both differences, which hold for all pairs at once (Bonferroni). Single
    runs have no interval.
    """
    pairs = sum(math.comb(modes, 2) for modes in Counter((cost.framework, cost.work) for cost in found).values())
    return list(_crossings(found, 2 * pairs))


def _crossings(found: Sequence[Cost], comparisons: int) -> Iterator[BreakEven]:
    for early, late in permutations(found, 2):
        if (
            (early.framework, early.work) != (late.framework, late.work)
            or late.outside - early.outside <= _WORTH_SAYING * late.wall
            or early.step - late.step <= _WORTH_SAYING * early.step
        ):
            continue
        start = difference(np.array(late.before_and_after), np.array(early.before_and_after), comparisons)
        step = difference(np.array(early.per_step), np.array(late.per_step), comparisons)
        steps = start.value / step.value
        if start.low is None or start.high is None or step.low is None or step.high is None:
            yield BreakEven(early, late, steps)
        elif start.low > 0 and step.low > 0:
            yield BreakEven(early, late, steps, start.low / step.high, start.high / step.low)


def _rounded(steps: float, digits: int = 2) -> str:
    return f"{float(f'{steps:.{digits}g}'):,.0f}"
