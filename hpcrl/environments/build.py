"""Build the software environments of a plan, once each, by the site's environment manager.

The name of an environment's directory is the hash of its rendering, so it never changes under a running job. It
counts as built when its marker is written, which is the last step. What an interrupted build left is
removed. Two builders of one environment wait for each other.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrl.environments import horovod
from hpcrl.environments.check import Checked, check, import_modules
from hpcrl.environments.commands import HashMismatch, call
from hpcrl.environments.links import configured_links, find_links_options
from hpcrl.environments.trust import check_owner
from hpcrl.errors import HpcrlError, UsageError, count
from hpcrl.formats.files import write_atomically
from hpcrl.formats.plan import Environment
from hpcrl.pins import unchecked, without_hashes

MARKER = "hpcrl-environment.json"
# Compiled to bytecode now: later the directory is read-only, and every cell would compile at its start and count that as start-up.
_INSTALL = ("--quiet", "--no-deps", "--compile-bytecode")
Report = Callable[[str, str], None]


@dataclass(frozen=True)
class Built:
    """One environment: its directory, whether it was built now, and if so the results of its check."""

    environment: Environment
    path: Path
    made: bool
    checked: Checked | None = None


def root_of(site: Mapping[str, Any]) -> Path:
    """Return the directory of environments: ``$HPCRL_ENVIRONMENTS``, else the site's, variables expanded.

    Raises:
        UsageError: a variable in it is not set here.
    """
    text = os.environ.get("HPCRL_ENVIRONMENTS") or os.path.expandvars(site["root"])
    if "$" in text:
        raise UsageError(f"environments.root: {text}: a variable in it is not set: set it, or set HPCRL_ENVIRONMENTS")
    return Path(text)


def is_built(path: Path, owners: Sequence[str] = ()) -> bool:
    """Tell whether the last step of an environment's build is complete.

    Args:
        owners: users whose environments are accepted, besides the caller and root: the profile's `environments.owners`.

    Raises:
        HpcrlError: it exists, but belongs to another user, or everybody may write into it.
    """
    if not path.is_symlink() and not path.exists():
        return False
    check_owner(path, owners)
    # The programs that run first; all other files are in directories of the same owner.
    for inside in (MARKER, "bin", "bin/python"):
        if os.path.lexists(path / inside):
            check_owner(path / inside, owners)
    return (path / MARKER).is_file()


def not_built(environments: Sequence[Environment], site: Mapping[str, Any]) -> list[str]:
    """Return the environments that are not built; none if this machine cannot see the directory."""
    try:
        root = root_of(site)
    except UsageError:
        return []
    nearest = next(folder for folder in (root.absolute(), *root.absolute().parents) if folder.exists())
    if nearest == Path(nearest.anchor):
        return []  # on a file system that only the nodes have
    owners = tuple(site.get("owners", ()))
    return [environment.key for environment in environments if not is_built(root / environment.key, owners)]


def build_all(environments: Sequence[Environment], site: Mapping[str, Any], report: Report) -> list[Built]:
    """Build the missing environments, two at a time, and check that they import and train.

    One that cannot be built does not stop the others.

    Args:
        site: the profile's `environments`: manager, root, setup lines.
        report: called with an environment's key and the present step.

    Raises:
        HpcrlError: some environments cannot be built; the message names them, with the last lines of the tool's output.
    """
    root = root_of(site)
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HpcrlError(
            f"{root}: cannot be created: {error.strerror}: set HPCRL_ENVIRONMENTS to your own directory"
        ) from None
    sysconfig.get_config_vars()  # filled at its first use, which is not thread-safe
    with ThreadPoolExecutor(max_workers=2) as pool:
        futures = [pool.submit(_build, environment, root, site, report) for environment in environments]
    wrong = {
        environment.key: failure
        for environment, future in zip(environments, futures, strict=True)
        if (failure := future.exception())
    }
    for failure in wrong.values():
        if len(environments) == 1 or not isinstance(failure, HpcrlError):
            raise failure
    if wrong:
        reasons = "; ".join(f"{key}: {str(failure).removeprefix(f'{key}: ')}" for key, failure in wrong.items())
        raise HpcrlError(f"{count(len(wrong), 'environment')} of {len(environments)} cannot be built: {reasons}")
    return [future.result() for future in futures]


def _build(environment: Environment, root: Path, site: Mapping[str, Any], report: Report) -> Built:
    path = root / environment.key
    owners = tuple(site.get("owners", ()))
    if is_built(path, owners):
        report(environment.key, "is there")
        return Built(environment, path, False)
    with _lock(root / f".{environment.key}.lock"):
        if is_built(path, owners):
            report(environment.key, "is there")
            return Built(environment, path, False)
        report(environment.key, f"building with {site['manager']}")
        if remark := unchecked(environment.name, environment.unhashed()):
            report(environment.key, remark)
        files = root / f".{environment.key}"
        files.mkdir(exist_ok=True)
        check_owner(files, owners)
        pins = environment.requirements
        # pip and conda take hashes for all pins or for none; uv checks those that there are.
        (files / "requirements.txt").write_text(
            pins if environment.hashed or site["manager"] == "uv" else without_hashes(pins)
        )
        (files / "environment.yaml").write_text(environment.conda)
        setup = tuple(site.get("setup", ()))
        _remove_unfinished(path)
        start = time.monotonic()
        _MANAGERS[site["manager"]](environment, path, files, setup)
        link_libraries(environment, path)
        if environment.build:
            report(environment.key, f"building {environment.build} from source, which can take minutes")
            own = [name for name in environment.imports if name.split(".")[0] != environment.build.split("==")[0]]
            versions = import_modules(environment, path, setup, own)
            built = horovod.wheel(environment, path, root, versions, setup)
            check_owner(built.parent, owners)
            check_owner(built, owners)
            _install(environment, path, [built])
        seconds = time.monotonic() - start
        report(environment.key, "checking that it imports and trains")
        checked = check(environment, path, setup)
        facts = {"versions": checked.versions, "modes": checked.modes, "build_seconds": round(seconds, 3)}
        marker = {"key": environment.key, **facts}
        write_atomically(path / MARKER, json.dumps(marker, indent=1) + "\n")
        shutil.rmtree(files)
        report(environment.key, f"built: {checked}")
    return Built(environment, path, True, checked)


def _remove_unfinished(path: Path) -> None:
    """Remove what an interrupted build left: installers take packages for installed of which only a part of the files is there."""
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise HpcrlError(
            f"{path}: an unfinished build cannot be removed: {error.strerror or error}: remove it, or set HPCRL_ENVIRONMENTS to your own directory"
        ) from None


def link_libraries(environment: Environment, path: Path) -> None:
    """Link shared libraries of some packages into the directory of another package, which searches only there."""
    packages = path / f"lib/python{environment.python}/site-packages"
    for package, pattern in environment.libraries.items():
        for library in packages.glob(f"{pattern}/*.so*"):
            link = packages / package / library.name
            if not link.exists():
                link.symlink_to(os.path.relpath(library, link.parent))


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    # Read-only and without following links: another user may have made it, and must not redirect the write.
    handle = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _with_uv(environment: Environment, path: Path, files: Path, setup: Sequence[str]) -> None:
    from uv import find_uv_bin

    uv = find_uv_bin()
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    python = sys.executable if here == environment.python else environment.python
    call([uv, "venv", "--quiet", "--no-project", "--python", python, path], setup)
    # The pins are complete, so no other package can be installed with them (no CUDA packages on the CPU).
    requirements: list[str | Path] = ["-r", files / "requirements.txt"]
    if environment.hashed:
        requirements.append("--require-hashes")
    links = configured_links()
    try:
        _install(environment, path, [*requirements, *find_links_options(links)], setup)
    except HpcrlError as error:
        if not environment.find_links or isinstance(error, HashMismatch):
            raise
        _install(environment, path, [*requirements, *find_links_options([*links, *environment.find_links])], setup)


def _install(environment: Environment, path: Path, what: Sequence[str | Path], setup: Sequence[str] = ()) -> None:
    from uv import find_uv_bin

    call(
        [find_uv_bin(), "pip", "install", *_INSTALL, "--python", path / "bin/python", *what],
        setup,
        failed=f"{environment.key}: uv failed",
    )


def _with_venv(environment: Environment, path: Path, files: Path, setup: Sequence[str]) -> None:
    call([f"python{environment.python}", "-m", "venv", path], setup)
    words: list[str | Path] = [path / "bin/python", "-m", "pip", "install", "--quiet", "--no-deps"]
    words += ["-r", files / "requirements.txt", *(["--require-hashes"] if environment.hashed else [])]
    call([*words, *find_links_options(environment.find_links)], setup, failed=f"{environment.key}: pip failed")


def _with_conda(program: str) -> Callable[[Environment, Path, Path, Sequence[str]], None]:
    def build(environment: Environment, path: Path, files: Path, setup: Sequence[str]) -> None:
        verb = ["create", "--yes"] if program == "micromamba" else ["env", "create", "--yes"]
        call([program, *verb, "--prefix", path, "--file", files / "environment.yaml"], setup)

    return build


_MANAGERS: dict[str, Callable[[Environment, Path, Path, Sequence[str]], None]] = {
    "uv": _with_uv,
    "venv": _with_venv,
    "conda": _with_conda("conda"),
    "mamba": _with_conda("mamba"),
    "micromamba": _with_conda("micromamba"),
}
