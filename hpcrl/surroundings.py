"""An existing environment, and how a command starts in it.

hpcrl's own process runs in an environment of hpcrl's. Only the command runs in the environment of the study: a venv or
conda environment (`path`), environment modules, a container, or none (`none`: the job's shell without changes).
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrl.errors import UsageError

NONE = "none"
# The user's PYTHONPATH before hpcrl's worker replaced it; the scripts set this variable.
PYTHONPATH = "HPCRL_PYTHONPATH"
_LAUNCHERS = ("apptainer", "singularity")
_MOST_HASHED = 64 * 1024**2  # maximum bytes of an image; a larger one is identified by size and time
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))", re.ASCII)
# Loads the command `module` in a shell that does not have it.
_LOAD = """\
if ! type module >/dev/null 2>&1; then
  for init in "${MODULESHOME:-/none}/init/bash" "${LMOD_PKG:-/none}/init/bash" /etc/profile.d/lmod.sh \\
      /etc/profile.d/z00_lmod.sh /etc/profile.d/modules.sh /usr/share/modules/init/bash /usr/share/lmod/lmod/init/bash; do
    if [ -r "$init" ]; then . "$init"; break; fi
  done
fi
type module >/dev/null 2>&1 || { echo "there is no command module" >&2; exit 1; }
file=$1
shift
for name; do module load "$name" || exit 1; done
env -0 >"$file"
"""


@dataclass(frozen=True)
class Surroundings:
    """A directory, modules, or a container with options of the program that starts it. If all are empty, it is `none`."""

    path: str | None = None
    modules: tuple[str, ...] = ()
    container: str | None = None
    options: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return "path" if self.path else "container" if self.container else "modules" if self.modules else NONE

    @property
    def facts(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items() if value}

    @property
    def key(self) -> str:
        """Return its name for the ids of cells; it replaces the key of an environment of hpcrl's."""
        text = json.dumps(self.facts, sort_keys=True)
        return f"{self.kind}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"

    def __str__(self) -> str:
        return self.path or self.container or ", ".join(self.modules) or NONE


def read_surroundings(value: Any) -> Surroundings | None:
    """Read `environment` of a study in a plan; None if it names an environment of hpcrl's, or is missing.

    Raises:
        UsageError: the value has another form.
    """
    if value == NONE:
        return Surroundings()
    if value is None or isinstance(value, str):
        return None
    if not isinstance(value, Mapping):
        raise UsageError("the plan's environment: expected a name or a mapping: make the plan again")
    path, container = value.get("path"), value.get("container")
    modules, options = value.get("modules", ()), value.get("options", ())
    lists = [values for values in (modules, options) if isinstance(values, list | tuple)]
    texts = [text for text in (path, container) if text is not None]
    if len(lists) < 2 or not all(isinstance(text, str) for text in [*texts, *modules, *options]):
        raise UsageError("the plan's environment: a value has a wrong type: make the plan again")
    return Surroundings(path, tuple(modules), container, tuple(options))


def expanded(text: str) -> Path:
    """Return a path with its variables expanded on this machine.

    Raises:
        UsageError: a variable is not set here.
    """
    for match in _VARIABLE.finditer(text):
        if (name := match[1] or match[2]) not in os.environ:
            raise UsageError(f"environment: {text}: ${name} is not set on {os.uname().nodename}: set it")
    return Path(_VARIABLE.sub(lambda match: os.environ[match[1] or match[2]], text))


def fault(how: Surroundings) -> str | None:
    """Say which part of an environment is missing on this machine; None if none is. Modules are not checked."""
    try:
        if how.path and not (expanded(how.path) / "bin").is_dir():
            what = "has no bin/" if expanded(how.path).is_dir() else "no such directory"
            return f"environment: {expanded(how.path)}: {what} on {os.uname().nodename}"
        if how.container and "://" not in how.container and not expanded(how.container).exists():
            return f"environment: {expanded(how.container)}: no such container image on {os.uname().nodename}"
    except UsageError as error:
        return str(error)
    return None


def describe(how: Surroundings) -> dict[str, Any]:
    """Return the facts of an environment for a record: the study's entry, and the identity of an image file."""
    facts = {"kind": how.kind, **how.facts}
    if how.container and "://" not in how.container:
        try:
            image = expanded(how.container)
            status = image.stat()
            facts |= {"size": status.st_size, "modified": round(status.st_mtime, 3)}
            if image.is_file() and status.st_size <= _MOST_HASHED:
                facts["sha256"] = hashlib.sha256(image.read_bytes()).hexdigest()
        except (OSError, UsageError):  # the start of the command reports it
            pass
    return facts


def enter(
    how: Surroundings,
    command: Sequence[str],
    variables: Mapping[str, str],
    start: Path,
    directories: Iterable[Path] = (),
    gpus: bool = False,
) -> tuple[list[str], dict[str, str]]:
    """Return the words and the variables that start a command in an environment.

    Args:
        start: the directory where it starts.
        directories: further directories that a container must see.

    Raises:
        UsageError: a part of the environment is missing; the message names it.
    """
    if wrong := fault(how):
        raise UsageError(wrong)
    words, environment = list(command), dict(variables)
    if own := environment.pop(PYTHONPATH, ""):
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [environment.get("PYTHONPATH", ""), own]))
    if how.path:
        _activate(expanded(how.path), environment)
    elif how.modules:
        environment = _loaded(how.modules, environment)
    elif how.container:
        words = _contained(how, words, environment, start, directories, gpus)
    return words, environment


def _activate(place: Path, variables: dict[str, str]) -> None:
    for name in ("PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV"):
        variables.pop(name, None)
    variables["PATH"] = f"{place / 'bin'}{os.pathsep}{variables.get('PATH', os.defpath)}"
    if (place / "conda-meta").is_dir():
        variables["CONDA_PREFIX"] = str(place)
    elif (place / "pyvenv.cfg").is_file():
        variables["VIRTUAL_ENV"] = str(place)


def _loaded(modules: Sequence[str], variables: Mapping[str, str]) -> dict[str, str]:
    with tempfile.TemporaryDirectory(prefix="hpcrl-modules-") as scratch:
        file = Path(scratch) / "environment"
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-c", _LOAD, "bash", str(file), *modules],
            env=dict(variables),
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode != 0 or not file.exists():
            lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
            raise UsageError(
                f"environment: modules {', '.join(modules)} cannot be loaded on {os.uname().nodename}: "
                f"{' '.join(lines[-3:]) or 'module load said nothing'}"
            )
        text = os.fsdecode(file.read_bytes())
    environment = dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)
    return {name: value for name, value in environment.items() if name not in ("_", "SHLVL", "OLDPWD")}


def _contained(
    how: Surroundings,
    command: Sequence[str],
    variables: Mapping[str, str],
    start: Path,
    directories: Iterable[Path],
    gpus: bool,
) -> list[str]:
    assert how.container is not None
    path = variables.get("PATH", os.defpath)
    program = next((launcher for name in _LAUNCHERS if (launcher := shutil.which(name, path=path))), None)
    if program is None:
        raise UsageError(
            f"environment: {how.container}: neither apptainer nor singularity found on {os.uname().nodename}: load the "
            "site's module in the profile's script.lines"
        )
    image = how.container if "://" in how.container else str(expanded(how.container))
    words = [program, "exec", *(["--nv"] if gpus else [])]
    for place in dict.fromkeys([start, *directories]):
        words += _mount(str(place))
    return [*words, "--pwd", str(start), *how.options, image, *command]


def _mount(place: str) -> list[str]:
    """Return the option that mounts a directory under its own name. `--bind` would not allow a colon or a comma in it."""
    if not any(character in place for character in ':,"\n\\'):
        return ["--bind", place]
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow(["type=bind", f"source={place}", f"destination={place}"])
    return ["--mount", out.getvalue()]
