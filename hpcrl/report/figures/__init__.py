"""The figures of the report."""

from __future__ import annotations

import pandas as pd

from hpcrl.report.figures import learning, papers, statistics, usage
from hpcrl.report.figures.drawing import MOST_LINES, Figure, line_names


def figures(
    rows: pd.DataFrame, episodes: pd.DataFrame, samples: pd.DataFrame, phases: pd.DataFrame, study: dict[str, object]
) -> list[Figure]:
    """Draw every figure that the data of one study allow.

    Args:
        rows: attempts with the columns of `with_groups`; the other tables are the dataset's.
        study: its `goal` and `paper`, each None if it has none.
    """
    rows = rows.assign(line=line_names(rows))
    shown = sorted(rows["line"].unique())[:MOST_LINES]
    rows = rows[rows["line"].isin(shown)]
    goal = study.get("goal")
    known = float(goal) if isinstance(goal, int | float) else None
    drawn = [
        *papers.figures(str(study.get("paper")), rows, known),
        *learning.figures(rows, episodes, known),
        *statistics.figures(rows, known),
        *usage.figures(rows, samples, phases),
    ]
    return [figure for figure in drawn if figure is not None]
