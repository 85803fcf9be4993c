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
        UsageError: the environment has no such flavour, or nothing for Horovod.
    """
    if flavour not in spec.flavours:
        raise UsageError(f"environment {spec.name}: has no {flavour} flavour; there are: {', '.join(spec.flavours)}")
    if horovod and spec.horovod is None:
        raise UsageError(f"environment {spec.name}: says nothing about Horovod: add `horovod:` to its file")
    chosen = spec.flavours[flavour]
    extra = spec.horovod if horovod else None
    settings = extra.variables(flavour) if extra and extra.build else {}
    values = {
        "environment": spec,
        "flavour": flavour,
        "horovod": horovod,
        "pins": spec.pins(flavour, horovod),
        "conda": [*spec.conda, *(extra.conda if extra else ())],
        "build": extra.build if extra else None,
        "settings": settings,
        "find_links": chosen.find_links,
        "channels": profile.environments.channels,
    }
    conda = renderer.render("environments/conda.yaml.j2", values)
    requirements = renderer.render("environments/requirements.txt.j2", values)
    digest = hashlib.sha256(f"{conda}\0{requirements}".encode()).hexdigest()[:10]
    key = "-".join([spec.name, flavour, *(["horovod"] if horovod else []), digest])
    return Environment(
        key=key,
        name=spec.name,
        flavour=flavour,
        horovod=horovod,
        python=spec.python,
        imports=[*spec.imports, *(extra.imports if extra else ())],
        find_links=list(chosen.find_links),
        libraries=dict(chosen.libraries),
        conda=conda,
        requirements=requirements,
        framework=spec.framework,
        build=extra.build if extra else None,
        settings=settings,
    )
