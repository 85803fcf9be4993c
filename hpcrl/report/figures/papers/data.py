"""What a paper's figures are made of, and what they come to."""

from __future__ import annotations

from collections.abc import Mapping
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
        asked: cores and GPUs of its cells, also of those that were not run; nothing in older datasets.
    """

    rows: pd.DataFrame
    episodes: pd.DataFrame
    samples: pd.DataFrame
    goal: float | None = None
    phases: pd.DataFrame = field(default_factory=pd.DataFrame)
    asked: tuple[tuple[int, int], ...] = ()


def asked_of(study: Mapping[str, object]) -> tuple[tuple[int, int], ...]:
    """Return the cores and GPUs of the cells of a study, from the dataset's index."""
    match study.get("asked"):
        case [*sizes]:
            pairs = [(size.get("cores"), size.get("gpus")) for size in sizes if isinstance(size, Mapping)]
            return tuple((cores, gpus) for cores, gpus in pairs if isinstance(cores, int) and isinstance(gpus, int))
    return ()


@dataclass(frozen=True)
class PaperFigures:
    """The figures of a paper with values, and for the others: title and reason."""

    drawn: list[Figure]
    empty: list[Empty]
