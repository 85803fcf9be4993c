"""hpcrl study list|show|check."""

from __future__ import annotations

from pathlib import Path

import click

from hpcrl.cli.common import Survivors, echo, echo_json, json_option, path_option, print_table, say
from hpcrl.cli.completion import library_names
from hpcrl.errors import count


@click.group("study")
def command() -> None:
    """List, show and check studies."""


@command.command("list", epilog="Example: hpcrl study list")
@path_option
def list_(paths: tuple[Path, ...]) -> int:
    """List the studies found along the search path. Broken files are named, the others listed, with exit code 1."""
    from hpcrl.plan.expand import expand
    from hpcrl.spec.document import display
    from hpcrl.spec.library import Library

    library = Library(paths)
    rows, survivors = [], Survivors()
    for name, file in library.files("jobs", ".yaml").items():
        with survivors.each(display(file)):
            study = library.study(name)
            rows.append([name, sum(1 for _ in expand(study)), study.title, display(file)])
    print_table(["study", "cells", "what", "file"], rows)
    return survivors.code


@command.command("show", epilog="Example: hpcrl study show sol-dqn")
@click.argument("name", shell_complete=library_names("jobs"))
@json_option
@path_option
def show(name: str, as_json: bool, paths: tuple[Path, ...]) -> None:
    """Print a study: its axes, seeds, workload and resources."""
    from hpcrl.plan.expand import expand
    from hpcrl.spec.library import Library
    from hpcrl.spec.quantities import format_memory, format_time

    study = Library(paths).study(name)
    if as_json:
        echo_json(study.model_dump(mode="json", exclude_none=True))
        return
    echo(f"{study.name}: {study.title}" + (f" (paper: {study.paper})" if study.paper else ""))
    for axis, values in study.axes.items():
        shown = (
            ", ".join(f"{key} {setting}" for key, setting in value.items()) if isinstance(value, dict) else str(value)
            for value in values
        )
        echo(f"  {axis}: " + " | ".join(shown))
    for together in study.zip or ():
        rows = zip(*together.values(), strict=True)
        echo(f"  {', '.join(together)}: " + " | ".join(", ".join(map(str, row)) for row in rows))
    if study.random:
        echo(
            f"  {', '.join(study.random.draw)}: {study.random.points} points drawn at random (seed {study.random.seed})"
        )
    for key, text in (study.computed or {}).items():
        echo(f"  {key} = {text}")
    echo(f"  seeds: {', '.join(map(str, study.seeds))}")
    workload = study.workload
    trained = f"{', '.join(algorithm.name for algorithm in study.algorithms())} on {', '.join(study.environment_ids())}"
    what = " ".join(workload.command) if workload.command else trained
    echo(f"  runs: {what}")
    asked = study.resources
    echo(
        f"  asks for (unless an axis says otherwise): {asked.cpus} cores, {format_memory(asked.memory)}, {format_time(asked.time)}"
    )
    echo(f"  cells: {sum(1 for _ in expand(study))}, chain {study.chain}")


@command.command("check", epilog="Example: hpcrl study check my-study.yaml")
@click.argument("names", nargs=-1, shell_complete=library_names("jobs"))
@path_option
def check(names: tuple[str, ...], paths: tuple[Path, ...]) -> int:
    """Check studies (default: all): names, values, axes, rules, frameworks, modes, the environment, and the paper's claims."""
    from hpcrl.plan.expand import expand
    from hpcrl.spec.document import display
    from hpcrl.spec.library import Library
    from hpcrl.spec.training import training_notes

    library = Library(paths)
    survivors = Survivors()
    files = {name: display(library.find("jobs", name)) for name in names}
    for name, file in (files or {name: display(path) for name, path in library.files("jobs", ".yaml").items()}).items():
        with survivors.each(file):
            study = library.study(name)
            number = sum(1 for _ in expand(study))
            library.claims_of(study.paper)
            echo(f"{name}: good, {count(number, 'cell')}")
            for note in filter(None, [*training_notes(study), library.no_claims(study.paper)]):
                say(f"{file}: {note}")
    return survivors.code
