"""hpcrl study list|show."""

from __future__ import annotations

from pathlib import Path

import click

from hpcrl.cli.common import echo, echo_json, json_option, path_option, print_table


@click.group("study")
def command() -> None:
    """List and show studies."""


@command.command("list", epilog="Example: hpcrl study list")
@path_option
def list_(paths: tuple[Path, ...]) -> None:
    """List the studies found along the search path."""
    from hpcrl.plan.expand import expand
    from hpcrl.spec.library import Library

    library = Library(paths)
    rows = []
    for name in library.files("jobs", ".yaml"):
        study = library.study(name)
        rows.append([name, sum(1 for _ in expand(study)), study.title, library.where("jobs", name)])
    print_table(["study", "cells", "what", "file"], rows)


@command.command("show", epilog="Example: hpcrl study show sol-dqn")
@click.argument("name")
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
            ", ".join(f"{key} {each}" for key, each in value.items()) if isinstance(value, dict) else str(value)
            for value in values
        )
        echo(f"  {axis}: " + " | ".join(shown))
    echo(f"  seeds: {', '.join(map(str, study.seeds))}")
    workload = study.workload
    what = " ".join(workload.command) if workload.command else f"{workload.algorithm} on {workload.environment}"
    echo(f"  runs: {what}")
    asked = study.resources
    echo(
        f"  asks for (unless an axis says otherwise): {asked.cpus} cores, {format_memory(asked.memory)}, {format_time(asked.time)}"
    )
    echo(f"  cells: {sum(1 for _ in expand(study))}, chain {study.chain}")
