"""hpcrl logs."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcrl.cli.common import DEFAULT_PLAN, echo, plan_argument, say
from hpcrl.cli.completion import cell_ids
from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.files import open_of_stranger

if TYPE_CHECKING:
    from hpcrl.slurm.client import Slurm

_COLOUR = re.compile("\x1b\\[[0-9;]*m")


@click.command("logs", epilog="Example: hpcrl logs plan --cell 3f2a")
@plan_argument
@click.option("--cell", shell_complete=cell_ids, help="The cell (the beginning of its id).")
@click.option("--plan", "directory", type=click.Path(path_type=Path), hidden=True)
@click.option("--where", is_flag=True, help="Print only the name of the file.")
@click.option("--follow", "-f", is_flag=True, help="Print the log as it grows, until the cell has ended.")
def command(plan: Path, cell: str | None, directory: Path | None, where: bool, follow: bool) -> None:
    """Show the log of a cell's latest attempt."""
    from hpcrl.slurm.client import Slurm
    from hpcrl.submit.logs import find_log

    if cell is None and not plan.exists():  # the old form: hpcrl logs CELL --plan PLAN
        cell, plan = str(plan), directory or DEFAULT_PLAN
    if cell is None:
        raise UsageError(
            f"--cell is missing: give one of the cells that `hpcrl status {plan}` lists: hpcrl logs {plan} --cell ID"
        )
    if follow and not where:
        _follow(plan, cell, Slurm())
        return
    path = find_log(plan, cell, Slurm())
    if where:
        echo(path)
        return
    _print_from(path, 0)


def _follow(plan: Path, cell: str, slurm: Slurm) -> None:
    """Print a cell's log as it grows. The state is read before the last part of the log, so that no line is missed."""
    from hpcrl.formats.plan import read_plan
    from hpcrl.submit.logs import look_for_log, may_grow

    pause = read_plan(plan).cluster.poll_seconds
    shown: Path | None = None
    at, told = 0, ""
    while True:
        path, state = look_for_log(plan, cell, slurm)
        if path is None and state != told:
            say(f"cell {cell}: {state.lower()}, no log yet")
            told = state
        if path != shown:
            shown, at = path, 0
        until = time.monotonic() + pause
        while path is not None:
            at = _print_from(path, at)
            if not may_grow(state) or time.monotonic() >= until:
                break
            time.sleep(0.5)
        if not may_grow(state):
            say(f"cell {cell}: {state.lower()}")
            return
        time.sleep(max(0.0, until - time.monotonic()))


def _print_from(path: Path, at: int) -> int:
    """Print a log from a position, and return its present end."""
    try:
        with open_of_stranger(path, "rb", most=2**50) as file:
            file.seek(at)
            for line in file:
                text = line.decode(errors="replace")
                # Remove the overwritten states of progress bars, and colours: nothing else in a log is for the terminal.
                echo(_COLOUR.sub("", text.rstrip("\r\n").rpartition("\r")[2]), nl=text.endswith("\n"))
            return file.tell()
    except OSError as error:
        raise HpcrlError(f"{path}: cannot be read: {error.strerror}") from None
