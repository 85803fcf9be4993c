"""hpcrl cancel."""

from __future__ import annotations

from pathlib import Path

import click

from hpcrl.cli.common import echo, plan_argument, say
from hpcrl.cli.completion import cell_ids
from hpcrl.errors import count


@click.command("cancel", epilog="Example: hpcrl cancel plan --cell 3f2a")
@plan_argument
@click.option(
    "--cell",
    "cells",
    multiple=True,
    shell_complete=cell_ids,
    help="Only this cell (the beginning of its id). May be repeated.",
)
def command(plan: Path, cells: tuple[str, ...]) -> None:
    """Cancel the waiting and running cells of a plan."""
    from hpcrl import api

    done = api.cancel(plan, cells, say)
    if done.held:
        echo(f"{count(done.held, 'task')} removed that Slurm held, because their cells have completed.")
    if not done.tasks and not done.completed:
        if not done.held:
            echo("Nothing waits or runs.")
        return
    completed = f" {done.completed} had completed before." if done.completed else ""
    echo(f"{count(done.tasks, 'task')} cancelled.{completed}")
