"""What several changes, made one after another, do to a time: the times of each stage, and the ratio of each to the one before."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from hpcrl.report.design import in_short
from hpcrl.report.figures.drawing import Panel
from hpcrl.report.figures.marks import intervals
from hpcrl.report.statistics import geometric_mean, ratio

_VALUE_WIDTH = 130  # pixels for the values beside the bars


@dataclass(frozen=True)
class Stage:
    """A configuration, and what it changes in the one before.

    Args:
        settings: axes and their values; a cell without one of these axes has None.
    """

    name: str
    change: str
    settings: Mapping[str, Any]

    def fits(self, config: Mapping[str, Any]) -> bool:
        """Tell whether a cell has this configuration."""
        return all(config.get(name) == value for name, value in self.settings.items())


@dataclass(frozen=True)
class Changed:
    """The panels of a chain, and its first and last stage in words."""

    panels: tuple[Panel, ...]
    words: str


def changed(rows: pd.DataFrame, stages: Sequence[Stage], column: str, title: str) -> Changed | None:
    """Draw the stages: their values, and the effect of each change; None if one of them was not run.

    Each value is a geometric mean over seeds, each effect the ratio of two, with the interval of Welch's t on the logarithms.

    Args:
        rows: attempts with `config`, `outcome` and the column, which is positive.
    """
    known = rows[(rows["outcome"] == "completed") & (rows[column] > 0)]
    configs = [json.loads(text) for text in known["config"]]
    measured: list[tuple[Stage, np.ndarray]] = []
    for stage in stages:
        here = [stage.fits(config) for config in configs]
        if not any(here):
            return None
        measured.append((stage, known.loc[here, column].to_numpy(float)))
    panels = (_values(measured, title), _effects(measured))
    (first, before), (last, after) = measured[0], measured[-1]
    whole = ratio(after, before)
    interval = "" if whole.low is None or whole.high is None else f" ({in_short(whole.low)} to {in_short(whole.high)})"
    words = f"From {first.name} to {last.name}: {in_short(whole.value)} times the time{interval}."
    return Changed(panels, words)


def _values(found: Sequence[tuple[Stage, np.ndarray]], title: str) -> Panel:
    table = []
    for stage, values in found:
        centre = geometric_mean(values)
        table.append(
            {"line": stage.name, "value": centre.value, "low": centre.low, "high": centre.high, "seeds": len(values)}
        )
    frame = pd.DataFrame(table)
    text = [in_short(value) for value in frame["value"]]
    return _bars(frame.assign(text=text), title, f"{title}, geometric mean", None)


def _effects(found: Sequence[tuple[Stage, np.ndarray]]) -> Panel:
    table = []
    for (_, before), (stage, after) in itertools.pairwise(found):
        effect = ratio(after, before)
        change = geometric_mean(after).value - geometric_mean(before).value
        table.append(
            {"line": stage.change, "value": effect.value, "low": effect.low, "high": effect.high,
             "seeds": min(len(before), len(after)), "seconds": change}
        )  # fmt: skip
    frame = pd.DataFrame(table)
    text = [
        f"x {in_short(value)} ({'+' if seconds > 0 else '−'}{in_short(abs(seconds))} s)"
        for value, seconds in zip(frame["value"], frame["seconds"], strict=True)
    ]
    return _bars(frame.assign(text=text), "time, as a multiple of the stage before", "ratio", 1.0)


def _bars(frame: pd.DataFrame, axis: str, head: str, rule: float | None) -> Panel:
    chart = intervals(frame, axis, "#0072B2", rule, _VALUE_WIDTH)
    shown = frame.drop(columns="text").rename(columns={"line": "stage", "value": head, "low": "from", "high": "to"})
    return Panel(chart, shown, "Stages" if rule is None else "Changes", len(frame))
