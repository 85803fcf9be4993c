"""hpcrl template list|show."""

from __future__ import annotations

from pathlib import Path

import click

from hpcrl.cli.common import Survivors, echo, path_option, print_table
from hpcrl.cli.completion import library_names
from hpcrl.errors import UsageError, suggestion


@click.group("template")
def command() -> None:
    """List and show templates."""


@command.command("list", epilog="Example: hpcrl template list")
@path_option
def list_(paths: tuple[Path, ...]) -> int:
    """List the templates and the file that is used for each. Broken files are named, the others listed, with exit code 1."""
    from hpcrl.spec.document import display
    from hpcrl.spec.library import Library
    from hpcrl.spec.rendering import Renderer

    library = Library(paths)
    renderer, survivors = Renderer(library), Survivors()
    rows = []
    for name, path in library.files("templates", ".j2").items():
        with survivors.each(display(path)):
            renderer.check(f"{name}.j2")
            rows.append([name, display(path)])
    print_table(["template", "file"], rows)
    return survivors.code


@command.command("show", epilog="Example: hpcrl template show sbatch/cells.sbatch")
@click.argument("name", shell_complete=library_names("templates", ""))
@path_option
def show(name: str, paths: tuple[Path, ...]) -> None:
    """Print a template."""
    from hpcrl.spec.library import Library

    known = Library(paths).files("templates", ".j2")
    file = known.get(name.removesuffix(".j2"))
    if file is None:
        raise UsageError(f"no template {name!r}; {suggestion(name, known)}")
    echo(file.read_text(), nl=False)
