"""Build the software environments of a plan, once each, by the site's environment manager.

An environment's directory is named by the hash of its rendering, so it never changes under a running job. It
counts as built when its marker is written, which is the last step; a build that was interrupted is taken up
again. Two builders of one environment wait for each other.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrl.errors import HpcrlError, UsageError
from hpcrl.formats.files import write_atomically
from hpcrl.formats.plan import Environment

MARKER = "hpcrl-environment.json"
Report = Callable[[str, str], None]


@dataclass(frozen=True)
class Built:
    """One environment: where it is, and whether it was made now."""

    environment: Environment
    path: Path
    made: bool


def root_of(site: dict[str, Any]) -> Path:
    """Return the directory of environments: ``$HPCRL_ENVIRONMENTS``, else the site's, variables expanded.

    Raises:
        UsageError: a variable in it is not set here.
    """
    text = os.environ.get("HPCRL_ENVIRONMENTS") or os.path.expandvars(site["root"])
    if "$" in text:
        raise UsageError(
            f"environments.root: {text}: a variable in it is not set here: set it, or set HPCRL_ENVIRONMENTS"
        )
    return Path(text)


def is_built(path: Path) -> bool:
    """Tell whether an environment's last step was done."""
    return (path / MARKER).is_file()


def build_all(environments: Sequence[Environment], site: dict[str, Any], report: Report) -> list[Built]:
    """Build what is missing, two at a time, and check that its modules import.

    Args:
        site: the profile's `environments`: manager, root, setup lines.
        report: called with an environment's key and what is being done about it.

    Raises:
        HpcrlError: an environment cannot be built, with the last lines of the tool that says why.
    """
    root = root_of(site)
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HpcrlError(
            f"{root}: cannot be made: {error.strerror}: set HPCRL_ENVIRONMENTS to a directory of yours"
        ) from None
    sysconfig.get_config_vars()  # filled at its first use, which is not safe in two threads at once
    with ThreadPoolExecutor(max_workers=2) as pool:
        futures = [pool.submit(_build, each, root, site, report) for each in environments]
        return [future.result() for future in futures]


def _build(environment: Environment, root: Path, site: dict[str, Any], report: Report) -> Built:
    path = root / environment.key
    if is_built(path):
        report(environment.key, "is there")
        return Built(environment, path, False)
    with _lock(root / f".{environment.key}.lock"):
        if is_built(path):
            report(environment.key, "is there")
            return Built(environment, path, False)
        if environment.horovod:
            raise HpcrlError(
                f"{environment.key}: building Horovod is not part of this version: its cells can be planned, not run"
            )
        report(environment.key, f"building with {site['manager']}")
        files = root / f".{environment.key}"
        files.mkdir(exist_ok=True)
        (files / "requirements.txt").write_text(environment.requirements)
        (files / "environment.yaml").write_text(environment.conda)
        _MANAGERS[site["manager"]](environment, path, files, tuple(site.get("setup", ())))
        report(environment.key, "checking")
        versions = check(environment, path)
        write_atomically(path / MARKER, json.dumps({"key": environment.key, "versions": versions}, indent=1) + "\n")
        shutil.rmtree(files)
        report(environment.key, "built: " + ", ".join(f"{name} {version}" for name, version in versions.items()))
    return Built(environment, path, True)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def check(environment: Environment, path: Path) -> dict[str, str]:
    """Import the environment's modules in it and return their versions.

    Raises:
        HpcrlError: one does not import.
    """
    program = (
        "import importlib, json, sys\n"
        "modules = {name: importlib.import_module(name) for name in sys.argv[1:]}\n"
        "print(json.dumps({name: str(getattr(each, '__version__', '?')) for name, each in modules.items()}))"
    )
    done = subprocess.run(
        [path / "bin/python", "-c", program, *environment.imports],
        capture_output=True,
        text=True,
        check=False,
        env=_clean(),
    )
    if done.returncode != 0:
        raise HpcrlError(f"{path}: was built, but does not work: {_tail(done.stderr)}")
    versions: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return versions


def _clean() -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    }


def _tail(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-3:]) or "it said nothing"


def _call(arguments: Sequence[str | Path], setup: Sequence[str] = (), extra: dict[str, str] | None = None) -> None:
    words = [str(each) for each in arguments]
    if setup:
        words = ["bash", "-c", "\n".join([*setup, 'exec "$@"']), "bash", *words]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, env={**_clean(), **(extra or {})})
    except FileNotFoundError:
        raise HpcrlError(f"{words[0]}: no such command: is the site's environment manager loaded?") from None
    if done.returncode != 0:
        raise HpcrlError(f"{Path(words[0]).name} failed: {_tail(done.stderr or done.stdout)}")


def _with_uv(environment: Environment, path: Path, files: Path, setup: Sequence[str]) -> None:
    from uv import find_uv_bin

    uv = find_uv_bin()
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    python = sys.executable if here == environment.python else environment.python
    if not (path / "bin/python").exists():
        _call([uv, "venv", "--quiet", "--no-project", "--python", python, path], setup)
    # The pins are complete, so nothing that is not among them can come along (no CUDA packages on the CPU).
    install: list[str | Path] = [
        uv,
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--python",
        path / "bin/python",
        "-r",
        files / "requirements.txt",
    ]
    links = _configured_links()
    try:
        _call([*install, *_find_links(links)], setup)
    except HpcrlError:
        if not environment.find_links:
            raise
        _call([*install, *_find_links([*links, *environment.find_links])], setup)


def _with_venv(environment: Environment, path: Path, files: Path, setup: Sequence[str]) -> None:
    if not (path / "bin/python").exists():
        _call([f"python{environment.python}", "-m", "venv", path], setup)
    links = _find_links(environment.find_links)
    _call(
        [
            path / "bin/python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "-r",
            files / "requirements.txt",
            *links,
        ],
        setup,
    )


def _with_conda(program: str) -> Callable[[Environment, Path, Path, Sequence[str]], None]:
    def build(environment: Environment, path: Path, files: Path, setup: Sequence[str]) -> None:
        if path.exists():
            shutil.rmtree(path)  # conda does not take up an interrupted build
        verb = ["create", "--yes"] if program == "micromamba" else ["env", "create", "--yes"]
        _call([program, *verb, "--prefix", path, "--file", files / "environment.yaml"], setup)

    return build


_MANAGERS: dict[str, Callable[[Environment, Path, Path, Sequence[str]], None]] = {
    "uv": _with_uv,
    "venv": _with_venv,
    "conda": _with_conda("conda"),
    "mamba": _with_conda("mamba"),
    "micromamba": _with_conda("micromamba"),
}


def _find_links(links: Sequence[str]) -> list[str]:
    return [word for link in links for word in ("--find-links", link)]


def _configured_links() -> list[str]:
    """Return the wheel directories that pip is configured with; uv does not read pip's configuration."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.find-links"],
        capture_output=True,
        text=True,
        check=False,
    )
    words = (os.environ.get("PIP_FIND_LINKS", "") + " " + (done.stdout if done.returncode == 0 else "")).split()
    return list(dict.fromkeys(words))
