"""hpcrl report."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from hpcrl.cli.common import DEFAULT_DATASET, DEFAULT_REPORT, print_table
from hpcrl.errors import UsageError, count, suggestion


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
@click.option(
    "--figures",
    default="png,svg,pdf",
    show_default=True,
    help="Formats of the figures' files, with commas between them; none: only those in the page.",
)
@click.option(
    "--baseline",
    type=click.Path(path_type=Path),
    help="An older dataset: name what became slower, larger or worse since, beyond noise; the exit code is then 1.",
)
def command(dataset: Path, study: str | None, output: Path, figures: str, baseline: Path | None) -> int:
    """Compare what was measured: one HTML file that needs no network, figures, CSV and LaTeX tables."""
    from hpcrl.report.write import FORMATS, write_report

    formats = tuple(part for part in figures.split(",") if part not in ("", "none"))
    if unknown := [part for part in formats if part not in FORMATS]:
        raise UsageError(f"--figures {unknown[0]}: no such format; {suggestion(unknown[0], FORMATS)}")
    done = write_report(dataset, study, output, formats, baseline)
    print_table(done.columns, done.rows)
    worse = [each for each in done.changes if each.verdict == "regression"]
    for each in worse:
        click.echo(f"regression: {each}")
    if baseline and not worse:
        judged = [each for each in done.changes if each.verdict != "cannot be judged"]
        click.echo(f"No regression beyond noise in {count(len(judged), 'comparison')} with {baseline}.")
    if unjudged := [each for each in done.changes if each.verdict == "cannot be judged"]:
        reasons = Counter(each.why for each in unjudged)
        told = "; ".join(f"{number} x {why}" for why, number in reasons.items())
        click.echo(f"{count(len(unjudged), 'comparison')} cannot be judged: {told}.")
    if done.claims:
        judged_as = Counter(str(each.verdict) for each in done.claims)
        click.echo(
            f"The paper's claims: {', '.join(f'{number} {word}' for word, number in sorted(judged_as.items()))}."
        )
    click.echo(f"Report: {done.html}")
    return int(bool(worse))
