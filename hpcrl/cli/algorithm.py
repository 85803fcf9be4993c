"""hpcrl algorithm list|show."""

from __future__ import annotations

import click

from hpcrl.cli.common import echo, echo_json, json_option, print_table
from hpcrl.cli.completion import algorithm_names


@click.group("algorithm", epilog="Example: hpcrl algorithm show ppo")
def command() -> None:
    """List and show the algorithms of built-in training."""


@command.command("list", epilog="Example: hpcrl algorithm list")
def list_() -> None:
    """List the algorithms and the frameworks that have them."""
    from hpcrl.catalogue.registry import algorithms

    rows = [
        [algorithm.name, algorithm.title, ", ".join(algorithm.actions), ", ".join(algorithm.frameworks)]
        for algorithm in algorithms().values()
    ]
    print_table(["algorithm", "title", "actions", "frameworks"], rows)


@command.command("show", epilog="Example: hpcrl algorithm show ppo")
@click.argument("name", shell_complete=algorithm_names)
@json_option
def show(name: str, as_json: bool) -> None:
    """Print the hyperparameters of an algorithm: default and valid values. A study sets them, or has axes of their names."""
    from dataclasses import fields

    from hpcrl.catalogue.fields import default_of
    from hpcrl.catalogue.registry import algorithms
    from hpcrl.errors import UsageError, suggestion

    if name not in algorithms():
        raise UsageError(f"no algorithm {name!r}; {suggestion(name, algorithms())}")
    algorithm = algorithms()[name]
    settings = sorted(fields(algorithm.settings), key=lambda field: field.name)
    if as_json:
        echo_json({field.name: {"default": field.default, "rule": vars(field.metadata["rule"])} for field in settings})
        return
    echo(
        f"{algorithm.name}: {algorithm.title}, {' or '.join(algorithm.actions)} actions, in {', '.join(algorithm.frameworks)}"
    )
    rows = []
    for field in settings:
        rows.append([field.name, default_of(field), field.metadata["rule"].expected()])
    print_table(["hyperparameter", "default", "expected"], rows)
