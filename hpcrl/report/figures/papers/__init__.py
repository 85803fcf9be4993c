"""The figures of published studies, drawn from your own runs: one module per paper. Missing runs are named."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hpcrl.report.figures.drawing import Figure
from hpcrl.report.figures.papers import (
    cirrus_pytorch_tensorflow,
    doors_jax_environments,
    jax_spinning_up,
    mpi_deep_q_learning,
    sol_dqn_frameworks,
)
from hpcrl.report.figures.papers.data import Empty, PaperData, PaperFigures

_PAPERS: dict[str, Callable[[PaperData], Iterator[Figure | Empty]]] = {
    "cirrus-pytorch-tensorflow": cirrus_pytorch_tensorflow.figures,
    "doors-jax-environments": doors_jax_environments.figures,
    "jax-spinning-up": jax_spinning_up.figures,
    "mpi-deep-q-learning": mpi_deep_q_learning.figures,
    "sol-dqn-frameworks": sol_dqn_frameworks.figures,
}


def figures(paper: str, data: PaperData) -> PaperFigures:
    """Draw a paper's figures; none if the study names no known paper."""
    entries = list(_PAPERS[paper](data)) if paper in _PAPERS else []
    drawn = [entry for entry in entries if isinstance(entry, Figure)]
    return PaperFigures(drawn, [entry for entry in entries if not isinstance(entry, Figure)])
