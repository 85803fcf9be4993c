"""A dataset that is missing or damaged is one sentence for the user: which file, and what to do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from hpcrl.errors import UsageError
from hpcrl.formats.files import is_plain_name
from hpcrl.formats.plan import MANIFEST

# Columns that files and directories are named after.
_NAMES = ("study", "cluster", "plan", "cell", "attempt")


def instead_of(directory: Path, index: str) -> str:
    """Say what to do about a directory that is not a dataset, with a place that `hpcrl collect` accepts.

    Args:
        index: the name of the file that makes a directory a dataset.
    """
    inner = directory / "dataset"
    if (inner / index).is_file():
        return f"give {inner}"
    if (directory / MANIFEST).is_file():
        return f"it is a plan: make one with `hpcrl collect {directory} -o {inner}`"
    if directory.is_dir() and any(directory.iterdir()):
        return "make one in a new directory with `hpcrl collect PLAN -o DATASET`"
    return f"make one with `hpcrl collect PLAN -o {directory}`"


@contextmanager
def reading(part: Path) -> Iterator[None]:
    """Say which file of a dataset is damaged, and what to do.

    Raises:
        UsageError: the part is not a table with the columns that it should have.
    """
    if part.is_dir():  # which Arrow reads as all files in it
        raise UsageError(f"{part}: is damaged: collect again into a new directory")
    try:
        yield
    except (OSError, pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        if isinstance(error, OSError) and error.errno:
            raise UsageError(f"{part}: cannot be read: {os.strerror(error.errno)}") from None
        raise UsageError(f"{part}: is damaged: collect again into a new directory") from None


def check_names(dataset: Path, rows: pa.Table) -> None:
    """Check the names that files and directories get.

    Raises:
        UsageError: no plan gives a name like one of these, and a file of that name could be outside the directory.
    """
    for column in _NAMES:
        for name in rows[column].unique().to_pylist() if column in rows.column_names else ():
            if name is not None and not is_plain_name(name):
                raise UsageError(
                    f"{dataset}: contains a {column} named {name[:80]!r}, which no plan gives: do not trust this dataset"
                )
