"""Check that a built environment matches its lock, imports, and trains."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcrl.catalogue.registry import frameworks
from hpcrl.environments.commands import call
from hpcrl.environments.inside import run_inside, variables
from hpcrl.errors import HpcrlError
from hpcrl.formats.plan import Environment
from hpcrl.pins import read_requirements

_DRIVER = "libcuda.so.1"
_IMPORT = """\
import importlib, importlib.metadata, json, re, sys
pins, names = json.loads(sys.argv[1]), sys.argv[2:]
strays = []
for line in pins:
    match = re.match(r"([A-Za-z0-9._-]+)(?:\\[.*\\])?===?([^ ;]+)( ?;.*)?$", line)
    try:
        found = importlib.metadata.version(match[1])
    except importlib.metadata.PackageNotFoundError:
        if not match[3]:
            strays.append(f"{match[1]}: expected version {match[2]} (the lock), got none")
    else:
        if found != match[2]:
            strays.append(f"{match[1]}: expected version {match[2]} (the lock), got {found}")
if strays:
    sys.exit("; ".join(strays))
modules = {name: importlib.import_module(name) for name in names}
print(json.dumps({name: str(getattr(module, "__version__", "imports")) for name, module in modules.items()}))
"""


@dataclass(frozen=True)
class Checked:
    """The results of a check: versions of the modules, the result of each mode, and how ranks average.

    `remark` names the device, or what could not be checked here.
    """

    versions: dict[str, str]
    modes: dict[str, str]
    collective: str | None = None
    remark: str | None = None

    def __str__(self) -> str:
        texts = [f"{name} {version}" for name, version in self.versions.items()]
        texts += [f"{mode} {did}" for mode, did in self.modes.items()]
        return ", ".join([*texts, *filter(None, (self.collective, self.remark))])


def import_modules(
    environment: Environment, path: Path, setup: Sequence[str], modules: Sequence[str]
) -> dict[str, str]:
    """Compare what is installed with the lock, import modules and return their versions.

    Raises:
        HpcrlError: a version differs, or a module does not import.
    """
    pins = [requirement.pin for requirement in read_requirements(environment.requirements)]
    out = call(
        [path / "bin/python", "-c", _IMPORT, json.dumps(pins), *modules],
        setup,
        variables(path),
        failed=f"{path}: was built, but does not work",
    )
    versions: dict[str, str] = json.loads(out.splitlines()[-1])
    return versions


def check(environment: Environment, path: Path, setup: Sequence[str] = ()) -> Checked:
    """Check the lock, import every module, and train a small agent in each mode of the framework.

    Raises:
        HpcrlError: a version differs, a module does not import, or it does not train: in its first mode, or with the environments
            that its name promises beside it.
    """
    try:
        versions = import_modules(environment, path, setup, environment.imports)
    except HpcrlError as error:
        # Login nodes have no driver, and some GPU builds cannot be imported without one.
        if environment.flavour != "cuda" or _DRIVER not in str(error):
            raise
        return Checked(
            import_modules(environment, path, setup, ()),
            {},
            remark=f"installed, not tried: the GPU driver ({_DRIVER}) is missing here",
        )
    if environment.framework is None:
        return Checked(versions, {})
    arguments = [environment.framework, "horovod" if environment.horovod else "none", environment.flavour]
    failed = f"{path}: was built, but does not train"
    result = run_inside(path, setup, "hpcrl.rl.smoke", arguments, {"TF_CPP_MIN_LOG_LEVEL": "2"}, failed)
    optional = frameworks()[environment.framework].modes[1:]
    for what, said in result["modes"].items():
        if what not in optional and not said.startswith("trains"):
            raise HpcrlError(f"{path}: was built, but {what} {said}")
    remark = None
    if environment.flavour == "cuda":
        remark = f"on {result['gpu']}" if result["gpu"] else "on the CPU only: there is no GPU here"
    return Checked(versions, result["modes"], result["collective"], remark)
