"""Shell completion of names. Switch it on with ``eval "$(_HPCRL_COMPLETE=bash_source hpcrl)"``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hpcrl.spec.library import Kind

Complete = Callable[[click.Context, click.Parameter, str], list[str]]
_MOST_CELLS = 200


def library_names(kind: Kind, suffix: str = ".yaml") -> Complete:
    """Complete the names of one kind of file. The shell completes paths."""

    def complete(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
        from hpcrl.errors import HpcrlError
        from hpcrl.spec.library import Library

        try:
            known = Library(context.params.get("paths") or ()).files(kind, suffix)
        except HpcrlError:
            return []
        return [name for name in known if name.startswith(begun)]

    return complete


def algorithm_names(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Complete the names of the algorithms of built-in training."""
    from hpcrl.catalogue.registry import algorithms

    return [name for name in algorithms() if name.startswith(begun)]


def cell_ids(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Complete the ids of a plan's cells."""
    from hpcrl.errors import HpcrlError
    from hpcrl.formats.plan import read_cells

    try:
        names = (cell.id for cell in read_cells(_plan_of_line()))
        return list(islice((name for name in names if name.startswith(begun)), _MOST_CELLS))
    except HpcrlError:
        return []


def _plan_of_line() -> Path:
    """Return the plan on the command line. Click has not parsed the words before an option without a value."""
    from hpcrl.cli.common import DEFAULT_PLAN
    from hpcrl.formats.plan import MANIFEST

    try:
        words = shlex.split(os.environ.get("COMP_WORDS", ""))
    except ValueError:  # an open quote
        words = []
    return next((Path(word) for word in words if (Path(word) / MANIFEST).is_file()), DEFAULT_PLAN)
