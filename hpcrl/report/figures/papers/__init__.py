"""The figures of published studies, drawn from your own runs: one module per paper. Missing runs are named."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pandas as pd

from hpcrl.report.figures.drawing import Figure
from hpcrl.report.figures.papers import (
    cirrus_pytorch_tensorflow,
    doors_jax_environments,
    jax_spinning_up,
    mpi_deep_q_learning,
    mpi_table,
    sol_dqn_frameworks,
)
from hpcrl.report.figures.papers.data import Empty, PaperData, PaperFigures, PaperTable

_PAPERS: dict[str, Callable[[PaperData], Iterator[Figure | Empty]]] = {
    "cirrus-pytorch-tensorflow": cirrus_pytorch_tensorflow.figures,
    "doors-jax-environments": doors_jax_environments.figures,
    "jax-spinning-up": jax_spinning_up.figures,
    "mpi-deep-q-learning": mpi_deep_q_learning.figures,
    "sol-dqn-frameworks": sol_dqn_frameworks.figures,
}
# Papers whose studies are set side by side in a table.
_TABLES: dict[str, Callable[[pd.DataFrame], PaperTable | None]] = {"mpi-deep-q-learning": mpi_table.table}


def figures(paper: str, data: PaperData) -> PaperFigures:
    """Draw a paper's figures; none if the study names no known paper."""
    entries = list(_PAPERS[paper](data)) if paper in _PAPERS else []
    drawn = [entry for entry in entries if isinstance(entry, Figure)]
    return PaperFigures(drawn, [entry for entry in entries if not isinstance(entry, Figure)])


def table(paper: str, rows: pd.DataFrame) -> PaperTable | None:
    """Set a paper's numbers beside those of its studies; None if the paper has no such table, or no run for it.

    Args:
        rows: attempts of all studies of the paper, with the columns of `with_groups`.
    """
    return _TABLES[paper](rows) if paper in _TABLES else None
