"""Query a dataset with SQL."""

from __future__ import annotations

import math
import re
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from hpcrl.errors import UsageError
from hpcrl.formats.damage import reading
from hpcrl.formats.runs import NAME as RUNS
from hpcrl.formats.tables import SCHEMAS, load_table, part_files, read_index, read_parts


def query(dataset: Path, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Run one SQL statement (DuckDB's dialect) on the tables of a dataset. Return column names and rows.

    The statement can read only the dataset: no other file and no network.

    Raises:
        UsageError: there is no dataset, or it is damaged, or the statement is empty or wrong.
    """
    if not sql.strip().strip(";").strip():
        raise UsageError('the query is empty: give an SQL statement such as "SELECT * FROM cells"')
    import duckdb
    import pyarrow.dataset as arrow

    index = read_index(dataset)
    connection = duckdb.connect()
    try:
        for name, schema in SCHEMAS.items():
            parts = []
            for part in part_files(dataset, name, index):
                with reading(part):  # a directory or a FIFO is not a part
                    parts.append(arrow.dataset(str(part), schema=schema, format="parquet"))
            connection.register(name, arrow.dataset(parts) if parts else schema.empty_table())
        if re.search(rf"\b{RUNS}\b", sql, re.IGNORECASE):
            connection.register(RUNS, load_table(dataset, RUNS))
        connection.execute("SET enable_external_access = false; SET lock_configuration = true")
        result = connection.execute(sql)
        return [column[0] for column in result.description or ()], result.fetchall()
    except duckdb.Error as error:
        for name in SCHEMAS if isinstance(error, duckdb.InvalidInputException) else ():
            if re.search(rf"\b{name}\b", sql, re.IGNORECASE):
                read_parts(dataset, name, index)  # DuckDB does not name a damaged file
        raise UsageError(f"the query failed: {' '.join(str(error).split())}") from None
    finally:
        connection.close()


def as_json(value: Any) -> Any:
    """Return a value of a query's result for JSON: dates and times as ISO 8601, NaN and infinities as null."""
    if isinstance(value, dict):
        return {str(key): as_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(part) for part in value]
    if isinstance(value, Decimal):
        value = int(value) if value.is_finite() and value == value.to_integral_value() else float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.hex() if isinstance(value, bytes) else str(value)
