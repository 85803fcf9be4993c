"""The dataset's files as collect writes them: parts of tables, and the summaries from which the rows of cells are made."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hpcrl.collect.reading import PROVENANCE
from hpcrl.formats.damage import reading
from hpcrl.formats.lease import check_lease

SUMMARIES = "records"
ACCOUNTING = "accounting.parquet"  # beside the summaries: what the schedulers said of attempts
_WORD = pa.dictionary(pa.int32(), pa.string())
# Numbers hardly repeat: without dictionaries they take a quarter of the time to write, and a table is a quarter smaller.
_ENCODINGS = {pa.float64(): "BYTE_STREAM_SPLIT", pa.int64(): "DELTA_BINARY_PACKED"}
SUMMARY_SCHEMA = pa.schema(
    [("plan", _WORD), ("cell", pa.string()), ("record", pa.string()), ("summary", pa.string())]
    + [(name, _WORD) for name in PROVENANCE]
)


def part_file(dataset: Path, table: str, number: int) -> Path:
    return dataset / table / f"part-{number:05d}.parquet"


def read_part(path: Path, schema: pa.Schema) -> pa.Table:
    """Read a part as a table of this schema; columns that an older hpcrl did not write are missing values.

    pyarrow.parquet.read_table would do the same, but imports pandas.

    Raises:
        UsageError: the part is damaged.
    """
    with reading(path):
        table = pq.ParquetFile(path).read(use_threads=False)  # each thread would keep memory of its own
        known = set(table.column_names)
        columns = [
            table[field.name].cast(field.type) if field.name in known else pa.nulls(len(table), field.type)
            for field in schema
        ]
        return pa.Table.from_arrays(columns, schema=schema)


def write_part(path: Path, table: pa.Table, lease: Path) -> None:
    """Write a whole part or nothing.

    Whoever takes over the dataset first takes the lease, then removes temporary files. So a process that was stopped does not write
    afterwards, at whatever place it was stopped: either its check fails, or it has nothing left to rename.

    Args:
        lease: the file of the lease on the dataset that this process, or the one that started it, holds.

    Raises:
        HpcrlError: another process has taken over the dataset.
    """
    temporary = path.with_name(f".{path.stem}-{lease.name}.parquet")  # no other process has this name
    numbers = {column.name: encoding for column in table.schema if (encoding := _ENCODINGS.get(column.type))}
    words = [name for name in table.column_names if name not in numbers]
    try:
        pq.write_table(
            table, temporary, compression="zstd", compression_level=9, use_dictionary=words, column_encoding=numbers
        )
        check_lease(lease)
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, FileNotFoundError):
            check_lease(lease)
        raise


class Summaries:
    """The summaries of all records of a dataset.

    Their texts, which may need more memory than all else, are in a temporary file of the dataset, in any order.
    """

    def __init__(self, dataset: Path) -> None:
        self._texts = tempfile.TemporaryFile(dir=dataset)  # noqa: SIM115, closed by __exit__
        known = [pa.Table.from_batches([], schema=SUMMARY_SCHEMA).drop_columns("summary")]
        ends = [0]
        for part in sorted((dataset / SUMMARIES).glob("part-*.parquet")):
            table = read_part(part, SUMMARY_SCHEMA)
            for text in table["summary"].to_pylist():
                ends.append(ends[-1] + self._texts.write(text.encode()))
            known.append(table.drop_columns("summary"))
            del table
            pa.default_memory_pool().release_unused()
        self._texts.flush()
        self._ends = np.array(ends)
        self.known = pa.concat_tables(known)

    def __enter__(self) -> Summaries:
        return self

    def __exit__(self, *_: object) -> None:
        self._texts.close()

    def records(self, places: pa.Array) -> list[dict[str, Any]]:
        """Return the summaries at some places."""
        chunk = self.known.take(places)
        words = [chunk[name].cast(pa.string()).to_pylist() for name in PROVENANCE]
        texts = (self._text(place) for place in places.to_pylist())
        parts = json.loads(f"[{','.join(texts)}]")  # in one call, which makes each name once
        return [part | dict(zip(PROVENANCE, own, strict=True)) for part, *own in zip(parts, *words, strict=True)]

    def _text(self, place: int) -> str:
        start, end = self._ends[place : place + 2].tolist()
        return os.pread(self._texts.fileno(), end - start, start).decode()
