"""The dataset's files as collect writes them: parts of tables, and the summaries from which the rows of cells are made."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hpcrl.collect.reading import PROVENANCE

SUMMARIES = "records"
_WORD = pa.dictionary(pa.int32(), pa.string())
SUMMARY_SCHEMA = pa.schema(
    [("plan", _WORD), ("cell", pa.string()), ("record", pa.string()), ("summary", pa.string())]
    + [(name, _WORD) for name in PROVENANCE]
)


def part_file(dataset: Path, table: str, number: int) -> Path:
    return dataset / table / f"part-{number:05d}.parquet"


def read_part(path: Path, schema: pa.Schema) -> pa.Table:
    """Read a part as a table of this schema; columns that an older hpcrl did not write are missing values.

    pyarrow.parquet.read_table would do the same, but imports pandas.
    """
    table = pq.ParquetFile(path).read()
    known = set(table.column_names)
    columns = [
        table[each.name].cast(each.type) if each.name in known else pa.nulls(len(table), each.type) for each in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def write_part(path: Path, table: pa.Table) -> None:
    """Write a whole part or nothing."""
    temporary = path.with_name(f".{path.name}")
    # Numbers hardly repeat, and a search for a dictionary of them takes half of the time of writing.
    words = [column.name for column in table.schema if not pa.types.is_floating(column.type)]
    pq.write_table(table, temporary, compression="zstd", use_dictionary=words)
    temporary.replace(path)
