"""hpcrl logs."""

from __future__ import annotations

from pathlib import Path

import click

from hpcrl.cli.common import DEFAULT_PLAN


@click.command("logs", epilog="Example: hpcrl logs 3f2a --plan plan")
@click.argument("cell")
@click.option("--plan", type=click.Path(path_type=Path), default=DEFAULT_PLAN, show_default=True)
@click.option("--where", is_flag=True, help="Print the file's name instead.")
def command(cell: str, plan: Path, where: bool) -> None:
    """Show the log of a cell's newest attempt. CELL is the beginning of its id."""
    from hpcrl.slurm.client import Slurm
    from hpcrl.submit.status import find_log

    path = find_log(plan, cell, Slurm())
    click.echo(str(path) if where else path.read_text(errors="replace"), nl=where)
