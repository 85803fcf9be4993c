"""Options, tables and progress for several commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from hpcrl.errors import UsageError, printable

DEFAULT_PLAN = Path("plan")
DEFAULT_DATASET = Path("dataset")
DEFAULT_REPORT = Path("report")


def path_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --path."""
    return click.option(
        "--path", "paths", multiple=True, type=click.Path(path_type=Path), metavar="DIR",
        help="Search this directory first for clusters/, jobs/, envs/ and templates/. May be repeated.",
    )(function)  # fmt: skip


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON to standard output, for programs.")(
        function
    )


def plan_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the plan directory, by default ./plan."""
    return click.argument("plan", type=click.Path(path_type=Path), default=DEFAULT_PLAN, metavar="[PLAN]")(function)


def echo(text: object = "", err: bool = False, nl: bool = True) -> None:
    """Print text. Every command prints with this function, so that control characters in values do not reach the terminal."""
    click.echo(printable(str(text)), err=err, nl=nl)


def say(text: str) -> None:
    """Print a note for the user on standard error, beside the result."""
    echo(f"hpcrl: {text}", err=True)


class Survivors:
    """Goes through files that may be broken: reports each broken one, and keeps the exit code."""

    def __init__(self) -> None:
        self.code = 0

    @contextmanager
    def each(self, where: str) -> Iterator[None]:
        """Process one file. If it is broken, report it on standard error and continue."""
        try:
            yield
        except UsageError as error:
            self.code = 1
            text = str(error)
            echo(text if where in text else f"{where}: {text}", err=True)


def echo_json(value: Any) -> None:
    echo(json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False))


_WRAPPED = 13  # minimum characters of a column that is wrapped


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table: with a frame on a terminal, tab-separated elsewhere. Numbers are right-aligned."""
    if not sys.stdout.isatty():
        for row in (columns, *rows):
            echo("\t".join(map(_cell, row)))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    cells = [[_cell(value) for value in row] for row in rows]
    whole = _unwrapped([max(map(len, column)) for column in zip(columns, *cells, strict=True)], console.width)
    for index, column in enumerate(columns):
        numeric = all(_is_number(row[index]) for row in rows)
        table.add_column(
            Text(_cell(column)), justify="right" if numeric else "left", overflow="fold", no_wrap=index in whole
        )
    for row in cells:
        table.add_row(*map(Text, row))
    console.print(table)


def _unwrapped(widths: Sequence[int], room: int) -> set[int]:
    """Return the columns that keep their width: the narrow ones, while each of the others still has some characters."""
    kept: set[int] = set()
    for index in sorted(range(len(widths)), key=lambda index: widths[index]):
        others = len(widths) - len(kept) - 1
        taken = sum(widths[column] + 2 for column in (*kept, index))
        if taken + _WRAPPED * others > room:
            break
        kept.add(index)
    return kept


def _cell(value: Any) -> str:
    """Return a value as text for one cell, without tabs and newlines, which would start another column or row."""
    return "" if value is None else printable(str(value)).replace("\t", "\\t").replace("\n", "\\n")


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, int | float) or str(value)[:1].isdigit() or str(value) in ("", "-")


@contextmanager
def progress(text: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on a terminal, and plain lines at intervals elsewhere."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(printable(text), total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    last = -1

    def plain(done: int, total: int) -> None:
        nonlocal last
        tenth = 10 * done // total if total else 10
        if tenth != last:
            last = tenth
            echo(f"{text}: {done}/{total}", err=True)

    yield plain
