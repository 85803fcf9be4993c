"""hpcrl export."""

from __future__ import annotations

from pathlib import Path

import click

from hpcrl.cli.common import DEFAULT_DATASET, echo


@click.command("export", epilog="Example: hpcrl export dataset --to tensorboard -o runs")
@click.argument("dataset", type=click.Path(path_type=Path), default=DEFAULT_DATASET, metavar="[DATASET]")
@click.option(
    "--to",
    "kind",
    type=click.Choice(["csv", "openrlbenchmark", "tensorboard", "mlflow"]),
    default="csv",
    show_default=True,
    help="The tool for which to write.",
)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Directory to create.")
def command(dataset: Path, kind: str, output: Path) -> None:
    """Write a dataset for other tools. For MLflow, install its package, too."""
    from hpcrl.report.export import export

    done = export(dataset, kind, output)
    echo(f"{done} {'tables' if kind == 'csv' else 'runs'} written to {output}")
