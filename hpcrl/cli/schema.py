"""hpcrl schema."""

from __future__ import annotations

import click
from pydantic import BaseModel

from hpcrl.cli.common import echo_json


@click.command("schema", epilog="Example: hpcrl schema cluster > cluster.schema.json")
@click.argument("kind", type=click.Choice(["cluster", "study", "environment", "claims"]))
def command(kind: str) -> None:
    """Print the JSON Schema of a profile, study, environment or paper's claims, for editors."""
    from hpcrl.spec.claims import Claims
    from hpcrl.spec.cluster import ClusterProfile
    from hpcrl.spec.environment import SoftwareEnvironment
    from hpcrl.spec.study import Study

    models: dict[str, type[BaseModel]] = {
        "cluster": ClusterProfile,
        "study": Study,
        "environment": SoftwareEnvironment,
        "claims": Claims,
    }
    schema = models[kind].model_json_schema()
    # Written by people, resolved while reading.
    schema["properties"]["extends"] = {
        "type": "string",
        "description": "the file of the same kind that this one extends",
    }
    if kind == "cluster":
        schema["properties"]["source"] = {
            "description": "entry of `sources` from which the values come",
            "type": ["string", "object"],
        }
    echo_json(schema)
