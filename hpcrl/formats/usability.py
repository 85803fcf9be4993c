"""What the software environments cost their users: one JSON file that `hpcrl env measure` writes and the report reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from hpcrl.errors import UsageError, printable
from hpcrl.formats.files import open_of_stranger, write_atomically
from hpcrl.formats.shapes import first_wrong_field, shown

FORMAT = 1
MOST_CHARACTERS = 1_000  # of one text
_MOST_BYTES = 64 * 1024**2
_MOST = 2**62
_REMEDY = "write it again with hpcrl env measure"


@dataclass(frozen=True)
class Measurement:
    """One run of one execution mode in one environment. Times are seconds, memory and sizes bytes.

    `size` is that of the environment's files, `build_seconds` the time to install it (None: not recorded). `import_seconds`
    is the time of all that a cell imports, such as JAX, Flax, Optax and Gymnasium, in a new process. `first_update_seconds`
    begins after it and includes compiling; `update_seconds` is the median of later updates. `peak_memory` is the resident
    memory of the process after these.
    `lines` are the non-empty lines of each of hpcrl's files for the framework. The traceback is that of observations that
    have one value less than the network expects; `names_page` tells whether it names hpcrl's page of the algorithm.
    """

    framework: str
    version: str
    environment: str
    device: str
    execution: str
    size: int
    build_seconds: float | None
    import_seconds: float
    first_update_seconds: float
    update_seconds: float
    peak_memory: int
    lines: dict[str, int]
    traceback_lines: int
    traceback_characters: int
    traceback_end: str
    names_page: bool


@dataclass(frozen=True)
class Failure:
    """An execution mode that could not be measured, and why, in one sentence."""

    framework: str
    environment: str
    execution: str
    reason: str


@dataclass(frozen=True)
class Usability:
    """The measurements, and the machine (:func:`hpcrl.telemetry.provenance.hardware`) and hpcrl's version that made them."""

    hpcrl: str
    machine: dict[str, Any]
    runs: list[Measurement]
    failures: list[Failure] = field(default_factory=list)


_Row = TypeVar("_Row", Measurement, Failure)


def as_facts(measured: Usability) -> dict[str, Any]:
    """Return the content of the file."""
    return {
        "format": FORMAT,
        "hpcrl": measured.hpcrl,
        "machine": measured.machine,
        "runs": [vars(run) for run in measured.runs],
        "failures": [vars(failure) for failure in measured.failures],
    }


def checked(kind: type[_Row], facts: Mapping[str, Any]) -> _Row:
    """Return a row of untrusted facts. Characters that a terminal would obey become escapes.

    Raises:
        ValueError: it is incomplete, or a value has a wrong type, is too long, too large, negative or not finite.
    """
    try:
        made = kind(**facts)
    except TypeError:
        raise ValueError("a measurement is incomplete") from None
    if wrong := first_wrong_field(made):
        raise ValueError(wrong)
    texts: dict[str, Any] = {}
    for name, value in vars(made).items():
        if isinstance(value, str):
            texts[name] = _text(name, value)
        for number in value.values() if isinstance(value, dict) else [value]:
            if isinstance(number, int | float) and not 0 <= number < _MOST:
                raise ValueError(f"{name!r}: expected a number of at least 0 and less than 2^62, got {shown(number)}")
    return kind(**{**vars(made), **texts})


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name!r}: expected a text, got {shown(value)!r}")
    if len(value) > MOST_CHARACTERS:
        raise ValueError(f"{name!r}: expected at most {MOST_CHARACTERS} characters, got {len(value)}")
    return printable(value)


def write_usability(path: Path, measured: Usability) -> None:
    """Write the file.

    Raises:
        HpcrlError: it cannot be written.
    """
    write_atomically(path, json.dumps(as_facts(measured), indent=1) + "\n")


def read_usability(path: Path) -> Usability:
    """Read the file.

    Raises:
        UsageError: it is missing, of a later format, or not such a file.
    """
    try:
        with open_of_stranger(path, most=_MOST_BYTES) as file:
            content = json.load(file)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path}: is not valid JSON: {_REMEDY}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UsageError(f"{path}: expected measurements of environments in format {FORMAT}: {_REMEDY}")
    try:
        measured = Usability(
            content["hpcrl"],
            content["machine"],
            [checked(Measurement, run) for run in content["runs"]],
            [checked(Failure, failure) for failure in content.get("failures", [])],
        )
        if wrong := first_wrong_field(measured):
            raise ValueError(wrong)
        cpu = measured.machine.get("cpu") or ""
        measured = replace(
            measured, hpcrl=_text("hpcrl", measured.hpcrl), machine={**measured.machine, "cpu": _text("cpu", cpu)}
        )
    except (KeyError, TypeError):
        raise UsageError(f"{path}: a measurement is incomplete: {_REMEDY}") from None
    except ValueError as error:
        raise UsageError(f"{path}: {error}: {_REMEDY}") from None
    if not measured.runs and not measured.failures:
        raise UsageError(f"{path}: has no measurements: {_REMEDY}")
    return measured
