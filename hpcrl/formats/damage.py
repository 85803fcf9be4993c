"""A damaged part of a dataset is one sentence for the user, with the file and what to do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from hpcrl.errors import UsageError


@contextmanager
def reading(part: Path) -> Iterator[None]:
    """Say which file of a dataset is damaged, and what to do.

    Raises:
        UsageError: the part is not a table with the columns that it should have.
    """
    try:
        yield
    except (OSError, pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        if isinstance(error, OSError) and error.errno:
            raise UsageError(f"{part}: cannot be read: {os.strerror(error.errno)}") from None
        raise UsageError(f"{part}: is damaged: collect again into a new directory") from None
