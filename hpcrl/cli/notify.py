"""hpcrl notify."""

from __future__ import annotations

from pathlib import Path

import click

from hpcrl.cli.common import echo, echo_json, plan_argument


@click.command("notify", epilog="Example: hpcrl notify plan --dry-run")
@plan_argument
@click.option("--dry-run", is_flag=True, help="Print the message and send nothing.")
@click.option("--chain", is_flag=True, hidden=True, help="Called by the last job of a chain.")
def command(plan: Path, dry_run: bool, chain: bool) -> None:
    """Send a plan's state to the command or URL of its study, or of `hpcrl plan --notify`.

    The last job of a chain calls it. A command gets the JSON on standard input, a URL by POST.
    """
    from hpcrl.slurm.client import Slurm
    from hpcrl.submit.notification import notify, retries_follow, summary

    if dry_run:
        echo_json(summary(plan, Slurm()))
        return
    if chain and retries_follow(plan, Slurm()):
        echo("`hpcrl submit --wait --retry` still runs failed cells again, and sends the message at its end")
        return
    told = notify(plan, Slurm())
    echo(f"notified {told}" if told else "no receiver: name a command or a URL with hpcrl plan --notify")
