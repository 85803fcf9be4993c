"""hpcrl report."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from hpcrl.cli.common import DEFAULT_DATASET, DEFAULT_REPORT, echo, path_option, print_table, say
from hpcrl.errors import UsageError, suggestion


@click.command("report", epilog="Example: hpcrl report dataset --study sol-dqn -o report")
@click.argument("datasets", type=click.Path(path_type=Path), nargs=-1, metavar="[DATASET]...")
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
    help="Formats of the figures' files, separated by commas; none: figures in the page only.  [default: png,svg,pdf; "
    "with --site: none]",
)
@click.option(
    "--site",
    type=click.Path(path_type=Path),
    help="Write a static site to this directory instead: an index, and the reports of all studies of one or several datasets.",
)
@click.option(
    "--baseline",
    type=click.Path(path_type=Path),
    help="An older dataset to compare with. Results that became slower, larger or worse beyond noise are named, with exit code 1, and so is that nothing "
    "could be compared.",
)
@click.option(
    "--grid-intensity",
    type=click.FloatRange(0),
    help="Grams of CO2 equivalent per kilowatt-hour at the site, to estimate emissions from the measured energy. "
    "[default: grid_intensity in the user's settings; otherwise no estimate]",
)
@click.option(
    "--usability",
    type=click.Path(path_type=Path),
    help="A file of hpcrl env measure, for a table of what each framework costs its user.",
)
@click.option(
    "--videos",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PLAN",
    help="Film the trained agents of this plan: the best and the median seed of each configuration. May be repeated.",
)
@path_option
def command(
    datasets: tuple[Path, ...],
    study: str | None,
    output: Path,
    figures: str | None,
    site: Path | None,
    baseline: Path | None,
    grid_intensity: float | None,
    usability: Path | None,
    videos: tuple[Path, ...],
    paths: tuple[Path, ...],
) -> int:
    """Compare the results of a dataset: one HTML file without external resources, figures, and CSV and LaTeX tables."""
    from hpcrl import api
    from hpcrl.report import against
    from hpcrl.report.renderer import FORMATS
    from hpcrl.spec.user import read_settings

    if grid_intensity is None:
        grid_intensity = read_settings().grid_intensity
    datasets = datasets or (DEFAULT_DATASET,)
    figures = figures if figures is not None else "none" if site else "png,svg,pdf"
    formats = tuple(part for part in figures.split(",") if part not in ("", "none"))
    if unknown := [part for part in formats if part not in FORMATS]:
        raise UsageError(f"--figures {unknown[0]}: no such format; {suggestion(unknown[0], FORMATS)}")
    if site:
        if baseline:
            raise UsageError("--baseline: is for a single report: leave out --site")
        return _site(datasets, site, study, formats, paths, grid_intensity, usability, videos)
    if len(datasets) > 1:
        raise UsageError("expected one dataset, got several: write their reports with --site DIR")
    done = api.report(
        datasets[0],
        output,
        study=study,
        figures=formats,
        baseline=baseline,
        grid_intensity=grid_intensity,
        usability=usability,
        videos=videos,
        path=paths,
    )
    print_table(done.columns, done.rows)
    worse = against.regressions(done.changes)
    for text in worse:
        echo(f"regression: {text}")
    if baseline and not worse:
        echo(against.none_worse(done.changes, baseline, done.incomparable))
    if failures := against.more_failures(done.changes):
        echo(failures)
    if unjudged := against.reasons(done.changes):
        echo(unjudged)
    if done.claims:
        judged_as = Counter(str(claim.verdict) for claim in done.claims)
        echo(f"The paper's claims: {', '.join(f'{number} {word}' for word, number in sorted(judged_as.items()))}.")
    echo(f"Report: {done.html}")
    for note in done.notes:
        say(note)
    if done.trouble:
        say(done.trouble)
    return int(bool(worse or done.trouble or done.incomparable))


def _site(
    datasets: tuple[Path, ...],
    site: Path,
    study: str | None,
    formats: tuple[str, ...],
    paths: tuple[Path, ...],
    grid_intensity: float | None,
    usability: Path | None,
    videos: tuple[Path, ...],
) -> int:
    from hpcrl.environments.playing import filmed
    from hpcrl.report.site import write_site
    from hpcrl.spec.library import Library

    entries = write_site(datasets, site, study, formats, Library(paths), grid_intensity, usability, videos, filmed)
    print_table(
        ["study", "title", "report"],
        [[entry.section.study, entry.section.title, f"{entry.place}/"] for entry in entries],
    )
    echo(f"Site: {site / 'index.html'}")
    for note in dict.fromkeys(note for entry in entries for note in entry.notes):
        say(note)
    trouble = next((entry.trouble for entry in entries if entry.trouble), "")
    if trouble:
        say(trouble)
    return int(bool(trouble))
