"""hpcrl collect."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcrl.cli.common import DEFAULT_DATASET, DEFAULT_PLAN, echo, echo_json, json_option, progress, say
from hpcrl.errors import count

if TYPE_CHECKING:
    from hpcrl.collect.finding import Refusal

MOST_REASONS = 20  # that are printed
_VARYING = re.compile(r"[0-9]+|'[^']*'|\"[^\"]*\"")


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
@click.option(
    "--processes", type=click.IntRange(1), help="Processes that read records. [default: one per core, at most 8]"
)
@click.option("--check", "only_check", is_flag=True, help="Show which records would be merged. Write nothing.")
@json_option
def command(plans: tuple[Path, ...], output: Path, processes: int | None, only_check: bool, as_json: bool) -> int:
    """Merge the records of plans, from one or several clusters, into one dataset. Only new records are read.

    A record that cannot be read or trusted is left out and listed in quarantine.json.
    """
    from hpcrl import api
    from hpcrl.collect.workers import use_system_memory
    from hpcrl.formats.tables import QUARANTINE

    use_system_memory()
    plans = plans or (DEFAULT_PLAN,)
    if only_check:
        done = api.collect(plans, output, check=True)
    else:
        with progress("merging") as advance:
            done = api.collect(plans, output, processes=processes, progress=advance, say=say)
    # Records that were left out do not harm a dataset, but a check must report them.
    code = int(only_check and bool(done.quarantined))
    if as_json:
        echo_json({**vars(done), "quarantined": [refusal.entry for refusal in done.quarantined]})
        return code
    for line in _told(done.quarantined, "" if only_check else f": {output / QUARANTINE} lists them all"):
        echo(line, err=True)
    if only_check:
        left_out = f", {len(done.quarantined)} would be quarantined" if done.quarantined else ""
        echo(
            f"{count(done.merged, 'record')} would be merged, {done.unchanged} unchanged{left_out}. Nothing was written."
        )
        return code
    outcomes = ", ".join(f"{number} {name}" for name, number in sorted(done.outcomes.items())) or "nothing yet"
    echo(
        f"{count(done.merged, 'record')} merged, {done.unchanged} unchanged; {count(done.attempts, 'attempt')}; cells: {outcomes}"
    )
    if done.unmeasured:
        echo(
            f"Telemetry did not run in {count(done.unmeasured, 'attempt')}: their CPU and memory are missing; see column notes for the reason"
        )
    if done.noted:
        echo(f"{count(done.noted, 'attempt')} with notes for the reader: see column notes of the cells")
    echo(f"Dataset: {output}. Next: hpcrl report {output}")
    return code


def _told(quarantined: Sequence[Refusal], where: str) -> Iterator[str]:
    """Give one line for each reason. Reasons that differ only in numbers, names and values count as one."""
    alike: dict[str, list[Refusal]] = {}
    for refusal in quarantined:
        alike.setdefault(_VARYING.sub("", refusal.reason)[:80], []).append(refusal)
    groups = sorted(alike.values(), key=len, reverse=True)
    for first, *others in groups[:MOST_REASONS]:
        more = f" (and {count(len(others), 'similar record')})" if others else ""
        yield f"  quarantined: {first.file}: {first.reason}{more}"
    if rest := sum(map(len, groups[MOST_REASONS:])):
        yield f"  quarantined: {count(rest, 'record')} for other reasons{where}"
