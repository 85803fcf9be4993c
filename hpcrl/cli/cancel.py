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
    parts = [count(number, what) for number, what in ((done.cells, "cell"), (done.stages, "stage")) if number]
    told = [f"{' and '.join(parts)} cancelled."] if parts else []
    if done.earlier:
        told.append(f"{done.earlier} had been cancelled before and {'has' if done.earlier == 1 else 'have'} not ended.")
    if done.completed:
        told.append(f"{done.completed} had completed before.")
    if told:
        echo(" ".join(told))
    elif not done.held:
        echo("Nothing waits or runs.")
