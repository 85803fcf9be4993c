"""The figures of the report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd
from altair.utils.schemapi import debug_mode

from hpcrl.report.axes import axes as axes_of
from hpcrl.report.choice import chosen
from hpcrl.report.figures import axes, learning, papers, scaling, search, statistics, times, topologies, updates, usage
from hpcrl.report.figures.drawing import Figure
from hpcrl.report.figures.papers.data import PaperData, asked_of
from hpcrl.report.scaling import Series, sizes
from hpcrl.report.score import Score
from hpcrl.report.search import Search

_CORES = ("cores", "ranks", "nodes")  # axes that are made of numbers of cores


@dataclass(frozen=True)
class Figures:
    """The figures of one study: hpcrl's own, those of scaling, of its search and of its paper, and empty ones; `head` is on the first screen."""

    head: Figure | None
    own: list[Figure]
    scaling: list[Figure]
    search: list[Figure]
    paper: list[Figure]
    empty: list[tuple[str, str]]

    @property
    def every(self) -> list[Figure]:
        return [*self.own, *self.scaling, *self.search, *self.paper]


# A chart is checked against Vega-Lite's schema when it is written. To check each of its parts, too, takes as long as all the rest.
@debug_mode(False)
def figures(
    rows: pd.DataFrame,
    episodes: pd.DataFrame,
    samples: pd.DataFrame,
    phases: pd.DataFrame,
    study: dict[str, object],
    score: Score | None = None,
    series: Sequence[Series] = (),
    searched: Search | None = None,
    dispatched: pd.DataFrame | None = None,
) -> Figures:
    """Draw every figure for which one study has data.

    Args:
        rows: attempts with the columns of `with_groups`, and `shared` (see `machines.side_by_side`); the other tables are
            the dataset's.
        study: its `goal` and `paper`, each None if it has none.
        series: of strong and weak scaling.
        searched: the trials of a search for hyperparameters.
        dispatched: what cProfile counted in updates (:func:`hpcrl.report.figures.updates.dispatched`).
    """
    score = score or Score()
    if "shared" not in rows:
        rows = rows.assign(shared=False)
    goal = study.get("goal")
    known = float(goal) if isinstance(goal, int | float) else None
    some, rule = chosen(rows, more_is_better=score.more_is_better, trains=score.trains)
    lines = [
        *times.figures(some, phases, score),
        *learning.figures(some, episodes, known, score),
        *statistics.figures(some, known, score),
        *usage.figures(some, samples, score),
        *topologies.figures(some, rows, phases),
        None if dispatched is None or dispatched.empty else updates.figure(some, phases, dispatched),
    ]
    ours = [_told(figure, rule) for figure in lines if figure is not None]
    every_axis = axes_of(rows)
    if series and not score.trains:  # the figures of scaling show more
        every_axis = every_axis.drop(columns=[*_CORES, *sizes(study)], errors="ignore")
    whole = [figure for figure in axes.figures(rows, every_axis, score) if figure is not None]
    if rule:  # the axes come first in a large study
        ours = [*ours[:1], *whole, *ours[1:]]
    else:
        ours += whole
    data = PaperData(rows, episodes, samples, known, phases, asked_of(study))
    paper = papers.figures(str(study.get("paper")), data)
    if not score.trains:
        ours = [_of_repeats(figure) for figure in ours]
    ours, scaled = _ordered(ours), scaling.figures(series, score.trains)
    answers = scaled if scaled and not score.trains else ours
    trials = search.figures(searched) if searched else []
    return Figures(next(iter(answers), None), ours, scaled, trials, paper.drawn, paper.empty)


def _told(figure: Figure, rule: str) -> Figure:
    return replace(figure, text=f"{figure.text} {rule}") if rule else figure


def _of_repeats(figure: Figure) -> Figure:
    """Name the runs of one configuration "repeats" if nothing is trained."""
    panels = tuple(
        replace(panel, values=panel.values.rename(columns={"seeds": "repeats", "share of seeds": "share of repeats"}))
        for panel in figure.panels
    )
    return replace(figure, text=re.sub(r"\bseed(s?)\b", r"repeat\1", figure.text), panels=panels)


def _ordered(found: list[Figure]) -> list[Figure]:
    """Put the main figures first: wall time, score, time to the goal."""
    first = ("wall-time", "final-score", "time-to-goal")
    return sorted(found, key=lambda figure: first.index(figure.name) if figure.name in first else len(first))
