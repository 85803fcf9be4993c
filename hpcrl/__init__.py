"""hpcrl: benchmark reinforcement-learning software on Slurm clusters.

Two functions are for users' own code: :func:`log` reports a value from inside a cell, :func:`load`
opens a dataset. Importing this package imports neither pandas nor any framework.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as of typing, whose import takes long: before hpcrl.__main__ runs, Ctrl-C is a traceback
if TYPE_CHECKING:
    from os import PathLike

    import pandas

__version__ = "0.1.0"
__all__ = ["__version__", "load", "log"]


def log(*, step: int | None = None, **values: float) -> None:
    """Report values of the running cell, such as ``hpcrl.log(loss=0.1, step=100)``.

    Inside a cell each call appends one JSON line to the file that ``$HPCRL_METRICS`` names; outside of
    one it does nothing, so that a script needs no change to run by hand. A value called ``return`` or
    ``episode_return`` together with ``step`` draws the learning curve in the report.

    Raises:
        TypeError: a value is not a number.
    """
    from hpcrl.telemetry.metrics import append

    append(values, step)


def load(dataset: str | PathLike[str], table: str = "cells") -> pandas.DataFrame:
    """Open one table of a dataset (``cells``, ``episodes``, ``samples``, ``phases``), or its view ``runs``.

    ``runs`` has what completed, one row for each cell, with a column for each axis: what most questions are about.

    Raises:
        hpcrl.errors.UsageError: there is no dataset there, or no such table.
    """
    from hpcrl.formats.tables import load_table

    return load_table(dataset, table)
