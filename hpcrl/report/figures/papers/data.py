"""What a paper's figures are made of, and what they come to."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

from hpcrl.report.figures.drawing import Figure

Empty = tuple[str, str]  # title of a figure without values, and the reason


@dataclass(frozen=True)
class PaperData:
    """The runs of a study, for its paper's figures.

    Args:
        rows: attempts with the columns of `with_groups`, and `shared`: whether another cell ran on the machine at the same time.
        episodes, samples, phases: tables of the dataset.
        goal: the study's goal.
    """

    rows: pd.DataFrame
    episodes: pd.DataFrame
    samples: pd.DataFrame
    goal: float | None = None
    phases: pd.DataFrame = field(default_factory=pd.DataFrame)


@dataclass(frozen=True)
class PaperFigures:
    """The figures of a paper with values, and for the others: title and reason."""

    drawn: list[Figure]
    empty: list[Empty]
