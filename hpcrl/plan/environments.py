"""Render a software environment for a site: conda YAML and requirements, under a key that holds their hash."""

from __future__ import annotations

import hashlib
from typing import Literal

from hpcrl.errors import UsageError
from hpcrl.formats.plan import Environment
from hpcrl.spec.cluster import ClusterProfile
from hpcrl.spec.environment import SoftwareEnvironment
from hpcrl.spec.rendering import Renderer

FlavourName = Literal["cpu", "cuda"]


def render_environment(
    renderer: Renderer, profile: ClusterProfile, spec: SoftwareEnvironment, flavour: FlavourName, horovod: bool
) -> Environment:
    """Render conda YAML and requirements; the key holds the hash of both, so that equal environments are built once.

    Raises:
        UsageError: the environment has no such flavour.
    """
    if flavour not in spec.flavours:
        raise UsageError(f"environment {spec.name}: has no {flavour} flavour; there are: {', '.join(spec.flavours)}")
    chosen = spec.flavours[flavour]
    values = {
        "environment": spec,
        "flavour": flavour,
        "horovod": horovod,
        "pins": spec.pins(flavour, horovod),
        "find_links": chosen.find_links,
        "channels": profile.environments.channels,
    }
    conda = renderer.render("environments/conda.yaml.j2", values)
    requirements = renderer.render("environments/requirements.txt.j2", values)
    digest = hashlib.sha256(f"{conda}\0{requirements}".encode()).hexdigest()[:10]
    key = "-".join([spec.name, flavour, *(["horovod"] if horovod else []), digest])
    return Environment(
        key,
        spec.name,
        flavour,
        horovod,
        spec.python,
        list(spec.imports),
        list(chosen.find_links),
        conda,
        requirements,
    )
