"""Render a software environment for a site: conda YAML and requirements, under a key with their hash."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Literal

from hpcrl.catalogue.training import COMPILED_IN
from hpcrl.errors import UsageError
from hpcrl.formats.plan import Environment
from hpcrl.pins import name_of, unchecked, unhashed, with_hashes
from hpcrl.profilers import PROFILERS, how_to_add
from hpcrl.spec.cluster import ClusterProfile
from hpcrl.spec.environment import SoftwareEnvironment
from hpcrl.spec.library import Library
from hpcrl.spec.rendering import Renderer
from hpcrl.spec.workload import Workload
from hpcrl.surroundings import Surroundings, expanded, fault

FlavourName = Literal["cpu", "cuda"]

DEFAULT_ENVIRONMENT = "numpy"


class Environments:
    """The software environments of a plan, each rendered when the first of its cells needs it."""

    def __init__(
        self, library: Library, profile: ClusterProfile, renderer: Renderer, surroundings: Surroundings | None
    ) -> None:
        self._library, self._profile, self._renderer, self.surroundings = library, profile, renderer, surroundings
        self._rendered: dict[tuple[str, FlavourName, bool], Environment] = {}
        self.capabilities: dict[str, tuple[str, float]] = {}

    def key(self, name: str, flavour: FlavourName, horovod: bool) -> str:
        """Return the key of a cell's environment."""
        if self.surroundings:
            return self.surroundings.key
        if (made := self._rendered.get((name, flavour, horovod))) is None:
            spec = self._library.environment(name)
            spec.check_is_for_cells()
            made = self._render(name, spec, flavour, horovod)
            self.capabilities[made.key] = (name, spec.flavours[flavour].min_capability or 0)
        return made.key

    def home(self, workload: Workload) -> str | None:
        """Return the key of the environment of hpcrl's own processes; None: that of the cells.

        Beside a command in surroundings of its own they need only NumPy and the packages of telemetry.
        """
        if self.surroundings and workload.command:
            return self._render(DEFAULT_ENVIRONMENT, self._library.environment(DEFAULT_ENVIRONMENT), "cpu", False).key
        return self.surroundings.key if self.surroundings else None

    def of(self, keys: Container[str | None]) -> list[Environment]:
        """Return the rendered environments with these keys."""
        return sorted((made for made in self._rendered.values() if made.key in keys), key=lambda made: made.key)

    def _render(self, name: str, spec: SoftwareEnvironment, flavour: FlavourName, horovod: bool) -> Environment:
        hashes = self._library.hashes(name)
        made = render_environment(self._renderer, self._profile, spec, flavour, horovod, hashes)
        self._rendered[name, flavour, horovod] = made
        return made


def render_environment(
    renderer: Renderer,
    profile: ClusterProfile,
    spec: SoftwareEnvironment,
    flavour: FlavourName,
    horovod: bool,
    hashes: Mapping[str, Sequence[str]],
) -> Environment:
    """Render conda YAML and requirements; the key contains the digest of both, so that equal environments are built once.

    Args:
        hashes: hashes of the packages' files (:meth:`hpcrl.spec.library.Library.hashes`). The key does not contain them,
            because they do not change which packages are installed.

    Raises:
        UsageError: the environment does not have this flavour, or nothing for Horovod.
    """
    if flavour not in spec.flavours:
        raise UsageError(f"environment {spec.name}: has no {flavour} flavour; there are: {', '.join(spec.flavours)}")
    if horovod and spec.horovod is None:
        raise UsageError(f"environment {spec.name}: `horovod` is missing: add it to the environment's file")
    chosen = spec.flavours[flavour]
    extra = spec.horovod if horovod else None
    pins = spec.pins(flavour, horovod)
    settings = extra.variables(flavour) if extra and extra.build else {}
    values = {
        "environment": spec,
        "flavour": flavour,
        "horovod": horovod,
        "pins": pins,
        "conda": [*spec.conda, *chosen.conda, *(extra.conda if extra else ())],
        "build": extra.build if extra else None,
        "settings": settings,
        "find_links": chosen.find_links,
        "channels": profile.environments.channels,
    }
    conda, requirements = _render(renderer, values)
    digest = hashlib.sha256(f"{conda}\0{requirements}".encode()).hexdigest()[:10]
    hashed = with_hashes(pins, hashes)
    build_hashes = list(hashes.get(name_of(extra.build), ())) if extra and extra.build else []
    checked, requirements = _render(renderer, {**values, "pins": [requirement.to_line() for requirement in hashed]})
    if not unhashed(hashed):  # conda calls pip, which accepts hashes for all pins or for none
        conda = checked
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
        build_hashes=build_hashes,
    )


def unchecked_of(environments: Iterable[Environment]) -> list[str]:
    """Return a sentence for each environment that is installed without hashes, with the reason."""
    remarks = {environment.name: unchecked(environment.name, environment.unhashed()) for environment in environments}
    return [f"environment {name}: {remark}" for name, remark in remarks.items() if remark]


def check_profilers(
    wanted: Iterable[tuple[str, str]], environments: Iterable[Environment], how: Surroundings | None
) -> list[str]:
    """Check that the environments of profiled cells have what their profilers need.

    Args:
        wanted: key of an environment, and the profiler of some of its cells.
        how: the study's existing environment, which may not be on this machine.

    Returns:
        a sentence for each profiler that cannot be looked for here.

    Raises:
        UsageError: a package is missing.
    """
    known = {environment.key: environment for environment in environments}
    unknown = []
    for key, profiler in sorted(set(wanted)):
        package = PROFILERS[profiler].package
        if not package:
            continue
        if key in known:
            if not re.search(rf"^{package}==", known[key].requirements, re.MULTILINE):
                raise UsageError(f"profile: environment {known[key].name} has no {package}: {how_to_add(package)}")
        elif how and how.path and not fault(how):
            place = expanded(how.path)
            if not (place / "bin" / package).exists():
                raise UsageError(f"profile: environment {place} has no {package}: install it there")
        else:
            unknown.append(f"profile: the environment of the cells must have {package}: it cannot be checked here")
    return unknown


def check_compiled(wanted: Iterable[str], environments: Iterable[Environment]) -> None:
    """Check that the environments of cells that step compiled environments have the framework of these. The study may have named another one.

    Args:
        wanted: keys of the environments.

    Raises:
        UsageError: it is missing.
    """
    package = re.compile(rf"^[ -]*{COMPILED_IN}(?![\w.-])", re.MULTILINE)
    keys = set(wanted)
    for environment in environments:
        if environment.key in keys and not package.search(f"{environment.conda}\n{environment.requirements}"):
            raise UsageError(
                f"environment {environment.name}: has no {COMPILED_IN}, which `stepping: compiled` needs: leave `environment` out, or name one "
                "that has it"
            )


def surroundings_notes(how: Surroundings | None) -> list[str]:
    """Say which part of an existing environment is missing on this machine. The plan may still be correct on the nodes."""
    if how is None:
        return []
    missing = fault(how)
    return [f"{missing}: the nodes must have it"] if missing else []


def _render(renderer: Renderer, values: Mapping[str, Any]) -> tuple[str, str]:
    names = ("environments/conda.yaml.j2", "environments/requirements.txt.j2")
    conda, requirements = (renderer.render(name, values) for name in names)
    return conda, requirements
