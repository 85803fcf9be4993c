"""hpcrl cancel."""

from __future__ import annotations

from pathlib import Path

import click

from hpcrl.cli.common import echo, plan_argument, say
from hpcrl.cli.completion import cell_ids
from hpcrl.errors import cells_and_stages, count


@click.command("cancel", epilog="Example: hpcrl cancel plan --cell 3f2a")
@plan_argument
@click.option(
    "--cell",
    "cells",
    multiple=True,
    shell_complete=cell_ids,
    help="Only this cell (the beginning of its id). May be repeated.",
)
def command(plan: Path, cells: tuple[str, ...]) -> int:
    """Cancel the waiting and running cells of a plan. Exit code 1 if it is not known of some whether they run."""
    from hpcrl import api

    done = api.cancel(plan, cells, say)
    if done.held:
        echo(f"{count(done.held, 'task')} removed that Slurm held, because their cells have completed.")
    told = [f"{cells_and_stages(done.cells, done.stages)} cancelled."] if done.cells or done.stages else []
    if done.earlier:
        told.append(f"{done.earlier} had been cancelled before and {'has' if done.earlier == 1 else 'have'} not ended.")
    if done.completed:
        told.append(f"{done.completed} had completed before.")
    if told:
        echo(" ".join(told))
    elif not done.held and not done.unsettled:
        echo("None of these cells waits or runs." if cells else "Nothing waits or runs.")
    if done.unsettled:
        what = "1 task of which nobody knows whether it waits or runs"
        if done.unsettled > 1:
            what = f"{done.unsettled} tasks of which nobody knows whether they wait or run"
        echo(f"Not cancelled: {what}: see `hpcrl status {plan}`, and cancel again.")
    return int(done.unsettled > 0)
