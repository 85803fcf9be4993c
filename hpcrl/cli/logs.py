"""hpcrl logs."""

from __future__ import annotations

import re
from pathlib import Path

import click

from hpcrl.cli.common import DEFAULT_PLAN, echo, plan_argument
from hpcrl.cli.completion import cell_ids
from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.files import open_of_stranger

_COLOUR = re.compile("\x1b\\[[0-9;]*m")


@click.command("logs", epilog="Example: hpcrl logs plan --cell 3f2a")
@plan_argument
@click.option("--cell", shell_complete=cell_ids, help="The cell (the beginning of its id).")
@click.option("--plan", "directory", type=click.Path(path_type=Path), hidden=True)
@click.option("--where", is_flag=True, help="Print the file's name instead.")
def command(plan: Path, cell: str | None, directory: Path | None, where: bool) -> None:
    """Show the log of a cell's newest attempt."""
    from hpcrl.slurm.client import Slurm
    from hpcrl.submit.status import find_log

    if cell is None and not plan.exists():  # as it was called before: hpcrl logs CELL --plan PLAN
        cell, plan = str(plan), directory or DEFAULT_PLAN
    if cell is None:
        raise UsageError(f"say which cell: hpcrl logs {plan} --cell ID; `hpcrl status {plan}` lists the cells")
    path = find_log(plan, cell, Slurm())
    if where:
        echo(path)
        return
    try:
        with open_of_stranger(path, "rb", most=2**50) as file:
            for line in file:
                text = line.decode(errors="replace")
                # A progress bar overwrites itself, and colours are lost: nothing else in a log is for the terminal.
                echo(_COLOUR.sub("", text.rstrip("\r\n").rpartition("\r")[2]), nl=text.endswith("\n"))
    except OSError as error:
        raise HpcrlError(f"{path}: cannot be read: {error.strerror}") from None
