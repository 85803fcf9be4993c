"""hpcrl dev slurm up|down|status|fault|kill|start."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from pathlib import Path

import click

from hpcrl.cli.common import echo, path_option, print_table
from hpcrl.cli.completion import library_names

_directory = click.option(
    "--dir", "directory", type=click.Path(path_type=Path), default=Path("/tmp/hpcrl-slurm"), show_default=True,
    help="The directory for all its files. Keep the name short.",
)  # fmt: skip


@click.group("dev")
def command() -> None:
    """Tools for tests and for trying hpcrl."""


@command.group("slurm")
def slurm() -> None:
    """A private Slurm on this host, with the partitions, QOS and limits of a cluster profile."""


@slurm.command("up", epilog="Example: hpcrl dev slurm up --cluster sol")
@click.option("--cluster", required=True, shell_complete=library_names("clusters"), help="The profile to imitate.")
@_directory
@click.option(
    "--faults",
    is_flag=True,
    help="Also put wrappers of sbatch, squeue, ... on PATH, which `hpcrl dev slurm fault` steers.",
)
@click.option(
    "--enforce-memory/--no-enforce-memory",
    default=None,
    help="Whether to end jobs that exceed their memory. Default: as on the site.",
)
@path_option
def up(cluster: str, directory: Path, faults: bool, enforce_memory: bool | None, paths: tuple[Path, ...]) -> None:
    """Start it. Nodes have the sizes of the profile, not of this machine. GPUs are simulated."""
    from hpcrl.private_slurm.config import ACCOUNT
    from hpcrl.private_slurm.virtual import VirtualSlurm
    from hpcrl.spec.library import Library

    profile = Library(paths).cluster(cluster)
    started = time.monotonic()
    virtual = VirtualSlurm(directory)
    facts = virtual.up(profile, lambda text: echo(f"starting: {text}", err=True), enforce_memory)
    for fact in facts:
        echo(fact, err=True)
    echo(
        f"# {profile.title}, imitated: {len(virtual.nodes())} nodes idle after {time.monotonic() - started:.0f} s; account {ACCOUNT}"
    )
    echo(f"export SLURM_CONF={shlex.quote(str(virtual.conf))}")
    if faults:
        echo(f"export PATH={shlex.quote(virtual.faults().path)}")


@slurm.command("down", epilog="Example: hpcrl dev slurm down")
@_directory
def down(directory: Path) -> None:
    """Stop it, with all its jobs."""
    from hpcrl.private_slurm.virtual import VirtualSlurm

    VirtualSlurm(directory).down()
    echo(f"{directory}: ended; its logs are in {directory}/log")


@slurm.command("status", epilog="Example: hpcrl dev slurm status")
@_directory
def status(directory: Path) -> int:
    """Show its nodes. Exit code 1 if it does not run."""
    from hpcrl.private_slurm.virtual import VirtualSlurm

    virtual = VirtualSlurm(directory)
    if not virtual.processes():
        echo(f"{directory}: no private Slurm runs here")
        return 1
    print_table(["node", "state"], [list(node) for node in virtual.nodes()])
    return 0


@slurm.command("fault", epilog="Example: hpcrl dev slurm fault sbatch accept-and-fail --times 1")
@click.argument("program", metavar="[COMMAND", required=False)
@click.argument("kind", metavar="KIND", required=False)
@click.argument("value", metavar="VALUE]", required=False)
@click.option("--times", type=click.IntRange(1), help="Only the next N calls. Default: every call.")
@click.option("--skip", type=click.IntRange(0), default=0, help="The first N calls do not fail.")
@click.option("--clear", is_flag=True, help="Remove the faults of COMMAND, or of all commands.")
@_directory
def fault(
    program: str | None, kind: str | None, value: str | None, times: int | None, skip: int, clear: bool, directory: Path
) -> None:
    """Make one of Slurm's commands fail, or show which ones do.

    Kinds: delay SECONDS, delay-after SECONDS, accept-and-fail, fail MESSAGE, reply TEXT, hang, missing, banner TEXT.
    """
    from hpcrl.errors import UsageError
    from hpcrl.private_slurm.virtual import VirtualSlurm

    virtual = VirtualSlurm(directory)
    virtual.check_running()
    faults = virtual.faults()
    if clear:
        if kind:
            raise UsageError("--clear: expected at most one command")
        faults.clear(program)
    elif program and kind:
        faults.set(program, kind, value, times, skip)
    elif program:
        raise UsageError(f"the fault for {program} is missing: see hpcrl dev slurm fault --help")
    counts = Counter(call.command for call in faults.calls())
    echo("calls so far: " + (", ".join(f"{name} {number}" for name, number in sorted(counts.items())) or "none"))
    rows = [[entry.command, entry.kind, entry.value, entry.times, entry.skip] for entry in faults.active()]
    print_table(["command", "fault", "value", "times", "skip"], rows)


@slurm.command("kill", epilog="Example: hpcrl dev slurm kill controller")
@click.argument("what", metavar="controller|database|NODE")
@click.option("--jobs", is_flag=True, help="With a node: also kill its jobs, as if the node had crashed.")
@_directory
def kill(what: str, jobs: bool, directory: Path) -> None:
    """Kill one of its daemons with SIGKILL: slurmctld, slurmdbd, or the slurmd of a node."""
    from hpcrl.errors import UsageError
    from hpcrl.private_slurm.virtual import VirtualSlurm

    virtual = VirtualSlurm(directory)
    virtual.check_running()
    if what not in ("controller", "database"):
        virtual.kill_node(what, jobs)
    elif jobs:
        raise UsageError("--jobs: expected the name of a node, got a daemon")
    elif what == "controller":
        virtual.kill_controller()
    else:
        virtual.kill_database()
    echo(f"{what}: killed")


@slurm.command("start", epilog="Example: hpcrl dev slurm start controller")
@click.argument("what", metavar="controller|database|NODE")
@_directory
def start(what: str, directory: Path) -> None:
    """Start a killed daemon again, and wait until it answers."""
    from hpcrl.private_slurm.virtual import VirtualSlurm

    virtual = VirtualSlurm(directory)
    virtual.check_running()
    named = {"controller": virtual.start_controller, "database": virtual.start_database}
    if what in named:
        named[what]()
    else:
        virtual.start_node(what)
    echo(f"{what}: answers")
