"""Pins with hashes in the format of pip and uv, one per line: ``name==1.0 --hash=sha256:...``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_HASH = re.compile(r"\s--hash=sha256:([0-9a-f]{64})(?=\s|$)")
_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?={2,3}([^ ;]+)( ?;.*)?")


@dataclass(frozen=True)
class Requirement:
    """One pin: its text, and the allowed SHA-256 digests of its files."""

    pin: str
    hashes: tuple[str, ...] = ()

    def to_line(self) -> str:
        return " ".join([self.pin, *options(self.hashes)])


def options(hashes: Iterable[str]) -> list[str]:
    """Return digests as options of a requirement."""
    return [f"--hash=sha256:{digest}" for digest in hashes]


def read_requirements(text: str) -> list[Requirement]:
    """Read a requirements file of pins. A backslash at the end continues a line."""
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines()]
    return [
        Requirement(_HASH.sub("", line).strip(), tuple(_HASH.findall(line)))
        for line in lines
        if line and not line.startswith("#")
    ]


def without_hashes(text: str) -> str:
    """Return a requirements file without its hashes, because pip refuses a file where only some pins have hashes."""
    return "".join(f"{requirement.pin}\n" for requirement in read_requirements(text))


def name_of(pin: str) -> str:
    """Return the normalised name and version of a pin, without extras and marker: ``my-package==1.0``.

    Raises:
        ValueError: the text is not a pin.
    """
    match = _PIN.fullmatch(pin)
    if match is None:
        raise ValueError(f"{pin!r} is not a pin: expected name==version")
    return f"{re.sub(r'[-_.]+', '-', match[1]).lower()}=={match[2]}"


def with_hashes(pins: Sequence[str], known: Mapping[str, Sequence[str]]) -> list[Requirement]:
    """Return each pin with its known digests (by :func:`name_of`)."""
    return [Requirement(pin, tuple(known.get(name_of(pin), ()))) for pin in pins]


def unhashed(requirements: Iterable[Requirement]) -> list[str]:
    """Return the pins without a hash."""
    return [requirement.pin for requirement in requirements if not requirement.hashes]


def unchecked(environment: str, missing: Sequence[str]) -> str | None:
    """Say that an environment is installed without hashes because some pins have none; None if all have hashes."""
    if not missing:
        return None
    names = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    return f"its packages are not checked by hashes, because those of {names} are missing: run `hpcrl env lock {environment}`"
