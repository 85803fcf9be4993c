"""hpcrl collect."""

from __future__ import annotations

from pathlib import Path

import click

from hpcrl.cli.common import DEFAULT_DATASET, DEFAULT_PLAN, echo_json, json_option, progress


@click.command("collect", epilog="Example: hpcrl collect sol-plan cirrus-plan -o dataset")
@click.argument("plans", nargs=-1, type=click.Path(path_type=Path), metavar="[PLAN]...")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=DEFAULT_DATASET,
    show_default=True,
    help="Dataset directory.",
)
@json_option
def command(plans: tuple[Path, ...], output: Path, as_json: bool) -> None:
    """Merge the records of any number of plans, of any clusters, into one dataset. Only new records are read.

    A record that cannot be read, or that is not to be trusted, is listed in quarantine.json and left out.
    """
    from hpcrl.collect.merge import collect
    from hpcrl.slurm.client import Slurm

    with progress("merging") as advance:
        done = collect(plans or (DEFAULT_PLAN,), output, Slurm(), advance)
    if as_json:
        echo_json(vars(done))
        return
    outcomes = ", ".join(f"{count} {name}" for name, count in sorted(done.outcomes.items())) or "nothing yet"
    click.echo(f"{done.merged} records merged, {done.unchanged} unchanged; {done.attempts} attempts; cells: {outcomes}")
    for each in done.quarantined:
        click.echo(f"  quarantined: {each['file']}: {each['reason']}", err=True)
    click.echo(f"Dataset: {output}. Next: hpcrl report {output}")
