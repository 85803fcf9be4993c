"""hpcrl profile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcrl.cli.common import DEFAULT_PLAN, echo, echo_json, json_option, plan_argument, print_table
from hpcrl.cli.completion import cell_ids
from hpcrl.profilers import MOST_OWN

if TYPE_CHECKING:
    from hpcrl.collect.profiles import CellProfile

FORMS = ("flame", "stacks", "trace", "file")


@click.command("profile", epilog="Example: hpcrl profile plan --cell 3f2a --export flame -o flame.svg")
@plan_argument
@click.option("--cell", shell_complete=cell_ids, help="The cell (the beginning of its id).")
@click.option("--top", type=click.IntRange(1, MOST_OWN), default=20, show_default=True, help="Number of functions.")
@click.option(
    "--export",
    "form",
    type=click.Choice(FORMS),
    help="Write the newest profile of the cell: as a flame graph (SVG), as collapsed stacks, as a trace for Perfetto and "
    "Chrome, or the profiler's own file.",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="File for --export.  [default: a name of the cell]"
)
@json_option
def command(plan: Path, cell: str | None, top: int, form: str | None, output: Path | None, as_json: bool) -> None:
    """List the profiles of a plan, show the functions of a cell's newest profile, or export it."""
    from hpcrl.collect.profiles import newest, profiles_of
    from hpcrl.errors import UsageError

    if cell is None and not plan.exists():  # hpcrl profile CELL, of the plan here
        cell, plan = str(plan), DEFAULT_PLAN
    if output and not form:
        raise UsageError(f"--output: needs --export: name one of {', '.join(FORMS)}")
    if form and as_json:
        raise UsageError("--json: --export writes a file: leave one of the two out")
    profiles = profiles_of(plan, cell)
    if cell is None:
        if form:
            raise UsageError("--export: needs --cell: `hpcrl profile` lists the cells that have a profile")
        _list(profiles, as_json)
        return
    chosen = newest(profiles, plan, cell)
    if form:
        _export(chosen, form, output)
    elif as_json:
        echo_json({**_line(chosen), "functions": [vars(function) for function in _functions(chosen)[:top]]})
    else:
        _show(chosen, top, plan)


def _line(found: CellProfile) -> dict[str, object]:
    return {
        "cell": found.cell,
        "attempt": found.attempt,
        "rank": found.rank,
        "profiler": found.profile.profiler,
        "bytes": found.profile.size,
        "file": str(found.path) if found.path else None,
        "note": found.profile.note,
    }


def _list(found: list[CellProfile], as_json: bool) -> None:
    lines = [_line(profile) for profile in found]
    if as_json:
        echo_json(lines)
    elif lines:
        print_table(list(lines[0]), [list(line.values()) for line in lines])
    else:
        echo("No cell has a profile. Run one with: hpcrl run PLAN --cell ID --profile cprofile")


def _functions(chosen: CellProfile) -> list[object]:
    from hpcrl.formats.profiles import read_functions

    return list(read_functions(chosen.profile.functions))


def _show(chosen: CellProfile, top: int, plan: Path) -> None:
    from hpcrl.formats.profiles import read_functions
    from hpcrl.profilers import PROFILERS

    profile, known = chosen.profile, PROFILERS.get(chosen.profile.profiler)
    title = known.title if known else profile.profiler
    echo(f"cell {chosen.cell}, attempt {chosen.attempt}, rank {chosen.rank}: {title}")
    if profile.note:
        echo(f"Note: {profile.note}.")
    if profile.total is not None:
        echo(f"{profile.total:.6g} {profile.unit} in all. The functions with the largest own values:")
    rows = [
        [f"{function.own:.4g}", f"{function.total:.4g}", function.calls, function.name]
        for function in sorted(read_functions(profile.functions), key=lambda function: -function.own)[:top]
    ]
    if rows:
        print_table([f"own ({profile.unit})", f"with callees ({profile.unit})", "calls", "function"], rows)
    if chosen.path:
        hint = f" Open it with: {known.opened_with(chosen.path, plan, chosen.cell)}" if known else ""
        if profile.size not in (None, chosen.path.stat().st_size):
            hint = " It has another size than the file that the cell wrote: somebody changed it, so do not open it."
        echo(f"File: {chosen.path}.{hint}")


def _export(chosen: CellProfile, form: str, output: Path | None) -> None:
    from hpcrl.collect.profiles import content_of, trace_of
    from hpcrl.errors import HpcrlError
    from hpcrl.formats.files import write_atomically
    from hpcrl.formats.profiles import read_stacks
    from hpcrl.report.flame import flame_graph

    name = f"{chosen.cell}-{chosen.profile.profiler}"
    if form == "file":
        content: str | bytes = content_of(chosen)
        path = output or Path(chosen.profile.file or name)
    elif form == "trace":
        content, path = trace_of(chosen), output or Path(f"{name}.json.gz")
    elif not chosen.profile.stacks:
        raise HpcrlError(
            f"cell {chosen.cell}: {chosen.profile.profiler} gave no call stacks: {chosen.profile.note or 'use --export file'}"
        )
    elif form == "stacks":
        content, path = chosen.profile.stacks + "\n", output or Path(f"{name}.txt")
    else:
        title = f"{name}, attempt {chosen.attempt}, rank {chosen.rank}"
        content = flame_graph(read_stacks(chosen.profile.stacks), chosen.profile.unit, title, chosen.profile.total)
        path = output or Path(f"{name}.svg")
    write_atomically(path, content)
    echo(f"Written to {path}.")
