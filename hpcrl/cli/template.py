"""hpcrl template list|show."""

from __future__ import annotations

from pathlib import Path

import click

from hpcrl.cli.common import echo, path_option, print_table
from hpcrl.errors import UsageError, suggestion


@click.group("template")
def command() -> None:
    """List and show templates."""


@command.command("list", epilog="Example: hpcrl template list")
@path_option
def list_(paths: tuple[Path, ...]) -> None:
    """List the templates and the file that wins for each."""
    from hpcrl.spec.document import display
    from hpcrl.spec.library import Library

    print_table(
        ["template", "file"],
        [[name, display(path)] for name, path in Library(paths).files("templates", ".j2").items()],
    )


@command.command("show", epilog="Example: hpcrl template show sbatch/cells.sbatch")
@click.argument("name")
@path_option
def show(name: str, paths: tuple[Path, ...]) -> None:
    """Print a template."""
    from hpcrl.spec.library import Library

    known = Library(paths).files("templates", ".j2")
    found = known.get(name.removesuffix(".j2"))
    if found is None:
        raise UsageError(f"no template {name!r}; {suggestion(name, known)}")
    echo(found.read_text(), nl=False)
