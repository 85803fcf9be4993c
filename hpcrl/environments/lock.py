"""Get the hashes of an environment's pins from the configured package index, for `hpcrl env lock`.

The file names no index, because the hashes are the same for every index.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hpcrl.environments.commands import call
from hpcrl.environments.links import configured_links, find_links_options
from hpcrl.errors import HpcrlError
from hpcrl.formats.files import write_atomically
from hpcrl.pins import name_of, options
from hpcrl.spec.environment import SoftwareEnvironment

# Environments are built on Linux with glibc, on these architectures.
_ARCHITECTURES = ("x86_64", "aarch64")


def lock_environment(spec: SoftwareEnvironment, known: Mapping[str, Sequence[str]], file: Path) -> int:
    """Write the hashes of every pin of an environment, of all its flavours, and return the number of pins.

    Args:
        known: existing hashes. They are kept, beside those of the index, for pins that the environment still has.

    Raises:
        HpcrlError: the index lacks a pin or its file for the environment's Python, or the file cannot be written.
    """
    digests: dict[str, set[str]] = {}
    for flavour, chosen in spec.flavours.items():
        pins = spec.pins(flavour, horovod=True)
        if spec.horovod and spec.horovod.build:
            pins.append(spec.horovod.build)
        asked = ask_index(pins, spec.python, chosen.find_links)
        for pin in pins:
            name = name_of(pin)
            digests.setdefault(name, set(known.get(name, ()))).update(asked.get(name, ()))
    if missing := [name for name, hashes in digests.items() if not hashes]:
        raise HpcrlError(
            f"{spec.name}: the package index has no file of {', '.join(missing)} for Python {spec.python} on Linux: "
            "nothing was written; pin another version"
        )
    try:
        file.parent.mkdir(exist_ok=True)
        write_atomically(file, to_text(spec.name, digests))
    except OSError as error:
        raise HpcrlError(
            f"{file}: cannot be written: {error.strerror}: copy envs/{spec.name}.yaml to your own envs/"
        ) from None
    return len(digests)


def ask_index(pins: Sequence[str], python: str, find_links: Sequence[str]) -> dict[str, set[str]]:
    """Return the SHA-256 digests of each pin's files for one version of Python on Linux, by ``name==version``.

    They are those of its wheels, or of its source distribution if it has no wheel.

    Args:
        find_links: pages with wheels that are not in the index; used if pip's own configuration does not have them.

    Raises:
        HpcrlError: the index lacks a pin.
    """
    links = configured_links()
    try:
        return _ask(pins, python, links)
    except HpcrlError:
        if not find_links:
            raise
        return _ask(pins, python, [*links, *find_links])


def _ask(pins: Sequence[str], python: str, links: Sequence[str]) -> dict[str, set[str]]:
    from uv import find_uv_bin

    with TemporaryDirectory(prefix="hpcrl-lock-") as place:
        file, answer = Path(place) / "pins.in", Path(place) / "pylock.toml"
        file.write_text("".join(f"{pin}\n" for pin in pins))
        words: list[str | Path] = [
            find_uv_bin(),
            "pip",
            "compile",
            "--quiet",
            "--no-deps",
            "--no-header",
            "--universal",
        ]
        words += ["--python-version", python, "--format", "pylock.toml", "-o", answer, *find_links_options(links), file]
        call(words, failed="cannot get hashes from the package index")
        packages = tomllib.loads(answer.read_text(encoding="utf-8"))["packages"]
    return {name_of(f"{package['name']}=={package['version']}"): set(_hashes(package, python)) for package in packages}


def _hashes(package: Mapping[str, Any], python: str) -> Iterator[str]:
    wheels = [wheel for wheel in package.get("wheels", ()) if fits(_file_name(wheel), python)]
    for file in wheels or ([package["sdist"]] if "sdist" in package else []):
        if digest := file.get("hashes", {}).get("sha256"):
            yield digest


def _file_name(file: Mapping[str, Any]) -> str:
    return str(file.get("name") or file.get("url") or file.get("path")).rpartition("/")[2]


def fits(wheel: str, python: str) -> bool:
    """Tell whether a wheel, by its file name, is for a version of CPython on Linux with glibc."""
    tags = wheel.removesuffix(".whl").split("-")[-3:]
    if len(tags) != 3:
        return False
    pythons, abis, platforms = (tag.split(".") for tag in tags)
    minor = int(python.partition(".")[2])
    fitting = {f"cp3{minor}", "py3", *(f"py3{number}" for number in range(minor + 1))}
    if "abi3" in abis or "none" in abis:
        fitting |= {f"cp3{number}" for number in range(2, minor + 1)}
    return bool(fitting & set(pythons)) and any(_runs_on(platform) for platform in platforms)


def _runs_on(platform: str) -> bool:
    return platform == "any" or bool(re.match(r"(many)?linux", platform) and platform.endswith(_ARCHITECTURES))


def to_text(name: str, hashes: Mapping[str, set[str]]) -> str:
    """Write the digests of an environment's pins, sorted."""
    lines = [f"# The allowed SHA-256 digests of each pin of {name}. Written by `hpcrl env lock {name}`."]
    for pin, digests in sorted(hashes.items()):
        lines.append(" \\\n    ".join([pin, *options(sorted(digests))]))
    return "\n".join(lines) + "\n"
