"""hpcrl: benchmark reinforcement-learning software on Slurm clusters.

Three functions are for users' own code: :func:`log` reports a value from inside a cell, :func:`load`
opens a dataset, :func:`load_agent` opens a trained agent. Importing this package imports neither pandas nor any framework.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as of typing, whose import takes long: before hpcrl.__main__ runs, Ctrl-C is a traceback
if TYPE_CHECKING:
    from os import PathLike

    import pandas

    from hpcrl.rl.agents import Agent

__version__ = "0.1.0"
__all__ = ["__version__", "load", "load_agent", "log"]


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
    """Open one table of a dataset (``cells``, ``episodes``, ``samples``, ``phases``, ``profiles``), or its view ``runs``.

    ``runs`` has what completed, one row for each cell, with a column for each axis: what most questions are about.

    Raises:
        hpcrl.errors.UsageError: there is no dataset there, or no such table.
    """
    from hpcrl.formats.tables import load_table

    return load_table(dataset, table)


def load_agent(place: str | PathLike[str], cell: str | None = None, which: str = "best") -> Agent:
    """Open a trained agent, which acts in NumPy: ``hpcrl.load_agent("plan", "3f2a").act(observation)``.

    Args:
        place: a plan directory, or an agent's file.
        cell: the beginning of the id of a cell of the plan.
        which: ``best`` by evaluation, or ``last``.

    Raises:
        hpcrl.errors.UsageError: there is no such agent, or the file is not one.
    """
    from pathlib import Path

    from hpcrl.rl.agents import find_agent, load_agent

    return load_agent(Path(place) if cell is None else find_agent(Path(place), cell, which))
