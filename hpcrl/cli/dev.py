"""hpcrl dev slurm up|down|status|env."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import click

from hpcrl.cli.common import path_option, print_table

_directory = click.option(
    "--dir", "directory", type=click.Path(path_type=Path), default=Path("/tmp/hpcrl-slurm"), show_default=True,
    help="The one directory that holds all of it; keep the name short.",
)  # fmt: skip


@click.group("dev")
def command() -> None:
    """For tests and for trying."""


@command.group("slurm")
def slurm() -> None:
    """A private Slurm on this host, with the partitions, QOS and limits of a cluster profile."""


@slurm.command("up", epilog="Example: hpcrl dev slurm up --cluster sol")
@click.option("--cluster", required=True, help="The profile to imitate.")
@_directory
@path_option
def up(cluster: str, directory: Path, paths: tuple[Path, ...]) -> None:
    """Start one. Nodes have the sizes that the profile says, not this machine's; GPUs are stand-ins."""
    from hpcrl.slurm.config import ACCOUNT
    from hpcrl.slurm.virtual import VirtualSlurm
    from hpcrl.spec.library import Library

    profile = Library(paths).cluster(cluster)
    started = time.monotonic()
    virtual = VirtualSlurm(directory)
    virtual.up(profile, lambda text: click.echo(f"starting: {text}", err=True))
    click.echo(
        f"# {profile.title}, imitated: {len(virtual.nodes())} nodes idle after {time.monotonic() - started:.0f} s; account {ACCOUNT}"
    )
    click.echo(f"export SLURM_CONF={shlex.quote(str(virtual.conf))}")


@slurm.command("down", epilog="Example: hpcrl dev slurm down")
@_directory
def down(directory: Path) -> None:
    """End it, with everything that runs in it."""
    from hpcrl.slurm.virtual import VirtualSlurm

    VirtualSlurm(directory).down()
    click.echo(f"{directory}: ended; its logs are in {directory}/log")


@slurm.command("status", epilog="Example: hpcrl dev slurm status")
@_directory
def status(directory: Path) -> int:
    """Show its nodes. Exit code 1 when it does not run."""
    from hpcrl.slurm.virtual import VirtualSlurm

    virtual = VirtualSlurm(directory)
    if not virtual.processes():
        click.echo(f"{directory}: no private Slurm runs here")
        return 1
    print_table(["node", "state"], [list(each) for each in virtual.nodes()])
    return 0
