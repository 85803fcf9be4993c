"""hpcrl cancel."""

from __future__ import annotations

from pathlib import Path

import click

from hpcrl.cli.common import plan_argument, say


@click.command("cancel", epilog="Example: hpcrl cancel plan --cell 3f2a")
@plan_argument
@click.option(
    "--cell",
    "cells",
    multiple=True,
    help="Only this cell (the beginning of its id); may be given several times.",
)
def command(plan: Path, cells: tuple[str, ...]) -> None:
    """Cancel what still waits or runs of a plan."""
    from hpcrl.slurm.client import Slurm
    from hpcrl.submit.status import cancel

    count = cancel(plan, Slurm(), list(cells), say)
    click.echo(f"{count} tasks cancelled." if count else "Nothing waits or runs.")
