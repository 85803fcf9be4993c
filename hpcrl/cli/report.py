"""hpcrl report."""

from __future__ import annotations

from pathlib import Path

import click

from hpcrl.cli.common import DEFAULT_DATASET, DEFAULT_REPORT, print_table


@click.command("report", epilog="Example: hpcrl report dataset --study sol-dqn -o report")
@click.argument("dataset", type=click.Path(path_type=Path), default=DEFAULT_DATASET, metavar="[DATASET]")
@click.option("--study", help="Only this study.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=DEFAULT_REPORT,
    show_default=True,
    help="Directory for the report.",
)
def command(dataset: Path, study: str | None, output: Path) -> None:
    """Compare what was measured: one HTML file that needs no network, PNG figures, CSV tables."""
    from hpcrl.report.write import write_report

    done = write_report(dataset, study, output)
    print_table(done.columns, done.rows)
    click.echo(f"Report: {done.html}")
