"""hpcrl cluster list|show|check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hpcrl.cli.common import Survivors, echo, echo_json, json_option, path_option, print_table
from hpcrl.cli.completion import library_names
from hpcrl.errors import count


@click.group("cluster")
def command() -> None:
    """List, show and check cluster profiles."""


@command.command("list", epilog="Example: hpcrl cluster list")
@json_option
@path_option
def list_(as_json: bool, paths: tuple[Path, ...]) -> int:
    """List the profiles found along the search path. Broken files are named, the others listed, with exit code 1."""
    from hpcrl.spec.document import display
    from hpcrl.spec.library import Library

    library = Library(paths)
    rows, survivors = [], Survivors()
    for name, file in library.files("clusters", ".yaml").items():
        with survivors.each(display(file)):
            profile = library.cluster(name)
            gpus = ", ".join(profile.gpu_words()) or "no GPU"
            rows.append([name, profile.status, profile.title, gpus, profile.default_study, display(file)])
    columns = ["cluster", "status", "what", "GPUs", "default study", "file"]
    if as_json:
        echo_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        print_table(columns, rows)
    return survivors.code


@command.command("show", epilog="Example: hpcrl cluster show sol --origin")
@click.argument("name", shell_complete=library_names("clusters"))
@click.option("--origin", is_flag=True, help="Show file, line, source and date of each value.")
@click.option("--key", help="Only the values below this key, such as partitions.htc.")
@json_option
@path_option
def show(name: str, origin: bool, key: str | None, as_json: bool, paths: tuple[Path, ...]) -> None:
    """Print the values of a profile, including those of the profile that it extends."""
    from hpcrl.errors import UsageError, suggestion
    from hpcrl.spec.cluster import ClusterProfile
    from hpcrl.spec.document import validate
    from hpcrl.spec.library import Library

    document = Library(paths).document("clusters", name)
    profile = validate(ClusterProfile, document)
    if as_json:
        echo_json(_below(profile.model_dump(mode="json"), key, name))
        return
    leaves = [(path, value) for path, value in _leaves(document.data, ()) if path[0] != "sources"]
    wanted = tuple(key.split(".")) if key else ()
    chosen = [(path, value) for path, value in leaves if tuple(map(str, path[: len(wanted)])) == wanted]
    if not chosen:
        raise UsageError(
            f"cluster {name}: nothing below {key!r}; {suggestion(str(key), {str(path[0]) for path, _ in leaves})}"
        )
    for path, value in chosen:
        dotted = ".".join(map(str, path))
        echo(f"{dotted}: {value}" + (f"   [{document.origin(path)}]" if origin else ""))


def _below(data: Any, key: str | None, name: str) -> Any:
    """Return the value at a dotted key of a profile.

    Raises:
        UsageError: the key does not exist; the message gives the nearest name.
    """
    from hpcrl.errors import UsageError, suggestion

    parts = key.split(".") if key else []
    for number, part in enumerate(parts):
        index = part if isinstance(data, dict) else int(part) if part.isdigit() else None
        known = list(data) if isinstance(data, dict) else list(range(len(data))) if isinstance(data, list) else []
        if index not in known:
            raise UsageError(
                f"cluster {name}: nothing at {'.'.join(parts[: number + 1])!r}; {suggestion(part, map(str, known))}"
            )
        data = data[index]
    return data


def _leaves(node: Any, path: tuple[str | int, ...]) -> list[tuple[tuple[str | int, ...], Any]]:
    if isinstance(node, dict) and node:
        return [leaf for key, value in node.items() for leaf in _leaves(value, (*path, key))]
    if isinstance(node, list) and any(isinstance(child, dict | list) for child in node):
        return [leaf for index, value in enumerate(node) for leaf in _leaves(value, (*path, index))]
    return [(path, ", ".join(map(str, node)) if isinstance(node, list) else node)]


@command.command("check", epilog="Example: hpcrl cluster check my-cluster.yaml")
@click.argument("names", nargs=-1, shell_complete=library_names("clusters"))
@path_option
def check(names: tuple[str, ...], paths: tuple[Path, ...]) -> int:
    """Check profiles (default: all): schema, references, billing rule, and a source for each value."""
    from hpcrl.errors import SpecError
    from hpcrl.spec.cluster import ClusterProfile
    from hpcrl.spec.document import validate
    from hpcrl.spec.library import Library

    library = Library(paths)
    failed = False
    for name in names or library.files("clusters", ".yaml"):
        try:
            document = library.document("clusters", name)
            validate(ClusterProfile, document)
        except SpecError as error:
            failed = True
            echo(str(error), err=True)
            continue
        bare = [
            path
            for path, _ in _leaves(document.data, ())
            if path[0] != "sources" and document.origin(path).source is None
        ]
        for path in bare:
            at = document.origin(path)
            echo(
                f"{at.file}:{at.line}: {'.'.join(map(str, path))}: `source` is missing: name an entry of `sources`",
                err=True,
            )
        failed |= bool(bare)
        called = document.data["name"]
        other = "" if called == Path(name).stem else f"; datasets and reports call this cluster {called} (key name)"
        echo(f"{name}: " + (count(len(bare), "value") + " without a source" if bare else "good") + other)
    return 1 if failed else 0
