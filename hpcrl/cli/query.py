"""hpcrl query."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import click

from hpcrl.cli.common import DEFAULT_DATASET, echo_json, json_option, print_table
from hpcrl.errors import printable


@click.command(
    "query",
    epilog='Example: hpcrl query "SELECT study, framework, execution, cpus, gpus, tasks, avg(training_time) FROM runs GROUP BY ALL"',
)
@click.argument("sql")
@click.option(
    "--dataset", type=click.Path(path_type=Path), default=DEFAULT_DATASET, show_default=True, help="Dataset to query."
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV to standard output.")
@json_option
def command(sql: str, dataset: Path, as_csv: bool, as_json: bool) -> None:
    """Query a dataset with SQL (DuckDB's dialect). Its tables are runs (one row for each completed cell), cells, episodes, samples, phases and profiles."""
    from hpcrl.report.query import as_json as plain
    from hpcrl.report.query import query
    from hpcrl.report.spreadsheet import harmless

    columns, rows = query(dataset, sql)
    if as_json:
        echo_json([dict(zip(columns, map(plain, row), strict=True)) for row in rows])
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        for row in (columns, *rows):
            writer.writerow([printable(value) if isinstance(value, str) else value for value in map(harmless, row)])
    else:
        print_table(columns, rows)
