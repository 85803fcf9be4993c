"""One process at a time writes a dataset, and what a killed one left is removed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hpcrl.collect.parts import SUMMARIES
from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.lease import FOLDER, Say, held_lease
from hpcrl.formats.tables import INDEX, QUARANTINE, SCHEMAS, VERSION, read_index

_PARTS = {SUMMARIES, *SCHEMAS} - {"cells"}  # `cells` has one part, which is always made again
_NAMES = {SUMMARIES, *SCHEMAS, FOLDER, QUARANTINE}


@contextmanager
def held_dataset(dataset: Path, say: Say) -> Iterator[tuple[dict[str, Any], Path]]:
    """Hold a dataset, which is created if it does not exist, and give its index and the file of the lease on it.

    `say` gets a line if this one waits.

    Raises:
        UsageError: the directory is something else, or a dataset of another format.
        HpcrlError: the directory cannot be written.
    """
    try:
        _index(dataset)
        for name in (SUMMARIES, *SCHEMAS, FOLDER):
            (dataset / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HpcrlError(f"{dataset}: cannot be made: {error.strerror}") from None
    if not os.access(dataset / FOLDER, os.W_OK):
        raise HpcrlError(f"{dataset}: cannot be written by you: collect into a dataset of your own with -o")
    with held_lease(dataset, "collect", say) as lease:
        index = _index(dataset)
        try:
            _remove_unfinished(dataset, index["parts"])
        except OSError as error:
            raise HpcrlError(f"{error.filename}: cannot be removed: {error.strerror}") from None
        try:
            yield index, lease.path
        except BaseException:  # a full disk, Ctrl-C: give back the space
            with suppress(OSError, HpcrlError):
                lease.check()  # else they are those of another process
                _remove_unfinished(dataset, _index(dataset)["parts"])
            raise


def _index(dataset: Path) -> dict[str, Any]:
    if (dataset / INDEX).exists():
        return read_index(dataset)
    # Without an index there may be what a killed process left, but nothing else.
    for entry in dataset.iterdir() if dataset.exists() else ():
        if entry.name not in _NAMES and not entry.name.startswith((f".{INDEX}.", f".{QUARANTINE}.")):
            raise UsageError(f"{dataset}: exists and is not a dataset: choose another directory with -o")
    return {"format": "hpcrl-dataset", "version": VERSION, "parts": 0, "studies": {}, "records": {}}


def _remove_unfinished(dataset: Path, parts: int) -> None:
    """Remove parts that the index does not count: their records are read again.

    What is half-written goes first: a process that lost the lease may still rename it.
    """
    for pattern in (f".{INDEX}.*", f".{QUARANTINE}.*", *(f"{table}/.*.parquet" for table in (SUMMARIES, *SCHEMAS))):
        for path in dataset.glob(pattern):
            path.unlink(missing_ok=True)
    for table in _PARTS:
        for path in (dataset / table).glob("part-*.parquet"):
            if not (number := path.stem.removeprefix("part-")).isdecimal() or int(number) >= parts:
                path.unlink(missing_ok=True)
