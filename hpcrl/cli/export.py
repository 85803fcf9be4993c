"""hpcrl export."""

from __future__ import annotations

from pathlib import Path

import click

from hpcrl.cli.common import DEFAULT_DATASET, echo
from hpcrl.secrets import without_password


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
@click.option(
    "-o",
    "--output",
    required=True,
    help="Directory to create; for MLflow also an address, and what is there already is kept.",
)
@click.option("--report", type=click.Path(path_type=Path), help="Add the page and the figures of this report (MLflow).")
@click.option(
    "--agents", "plans", multiple=True, type=click.Path(path_type=Path), metavar="PLAN",
    help="Add the trained agents of this plan (MLflow). May be repeated.",
)  # fmt: skip
def command(dataset: Path, kind: str, output: str, report: Path | None, plans: tuple[Path, ...]) -> None:
    """Write a dataset for other tools. For MLflow, install its package, too."""
    from hpcrl.report.export import export

    done = export(dataset, kind, output, report, plans)
    echo(f"{done} {'tables' if kind == 'csv' else 'runs'} written to {without_password(output)}")
