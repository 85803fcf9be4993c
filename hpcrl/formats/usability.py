"""What the software environments cost their users: one JSON file that `hpcrl env measure` writes and the report reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrl.errors import UsageError
from hpcrl.formats.files import open_of_stranger, write_atomically
from hpcrl.formats.shapes import first_wrong_field

FORMAT = 1
_MOST_BYTES = 64 * 1024**2
_REMEDY = "write it again with hpcrl env measure"


@dataclass(frozen=True)
class Measurement:
    """One run of one execution mode in one environment. Times are seconds, memory and sizes bytes.

    `size` is that of the environment's files, `build_seconds` the time to install it (None: not recorded). `import_seconds`
    is the time of ``import FRAMEWORK`` in a new process. `first_update_seconds` begins after it and includes compiling;
    `update_seconds` is the median of later updates. `peak_memory` is the resident memory of the process after these.
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
class Usability:
    """The measurements, and the machine (:func:`hpcrl.telemetry.provenance.hardware`) and hpcrl's version that made them."""

    hpcrl: str
    machine: dict[str, Any]
    runs: list[Measurement]


def as_facts(measured: Usability) -> dict[str, Any]:
    """Return the content of the file."""
    return {
        "format": FORMAT,
        "hpcrl": measured.hpcrl,
        "machine": measured.machine,
        "runs": [vars(each) for each in measured.runs],
    }


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
        runs: Sequence[Any] = content["runs"]
        found = Usability(content["hpcrl"], content["machine"], [Measurement(**each) for each in runs])
    except (KeyError, TypeError):
        raise UsageError(f"{path}: a measurement is incomplete: {_REMEDY}") from None
    for each in (found, *found.runs):
        if wrong := first_wrong_field(each):
            raise UsageError(f"{path}: {wrong}: {_REMEDY}")
    if not found.runs:
        raise UsageError(f"{path}: has no measurements: {_REMEDY}")
    return found
