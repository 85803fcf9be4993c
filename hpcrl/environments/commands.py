"""All calls of the environment builders to other programs."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcrl.errors import HpcrlError

_ERROR = re.compile(r"CMake Error|: (fatal )?error:")
# Messages of uv and pip for a file with another digest than its pin: the pin, and the digest of the file.
_MISMATCH = re.compile(
    r"Hash mismatch for `([^`]+)`.*?Computed:\s*sha256:([0-9a-f]{64})"
    r"|DO NOT MATCH THE HASHES.*?\n\s*(\S+) from .*?Got\s+([0-9a-f]{64})",
    re.DOTALL,
)
_OWN = "hpcrl: "
_PRIVATE = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


class HashMismatch(HpcrlError):
    """A package's file has another digest than its pin allows."""


def call(
    arguments: Sequence[str | Path],
    setup: Sequence[str] = (),
    extra: Mapping[str, str] | None = None,
    failed: str | None = None,
    log: Path | None = None,
    most_seconds: float | None = None,
) -> str:
    """Run a command after the site's setup lines, without this Python's own variables, and return its standard output.

    Args:
        log: file for its whole output, if it fails.

    Raises:
        HpcrlError: it is missing, fails or takes more than `most_seconds`; the message begins with `failed` and has the lines that show the cause.
    """
    words = [str(argument) for argument in arguments]
    name = Path(words[0]).name
    if setup:
        words = ["bash", "-c", "\n".join([*setup, 'exec "$@"']), "bash", *words]
    environment = {key: value for key, value in os.environ.items() if key not in _PRIVATE}
    environment |= {"PYTHONSAFEPATH": "1", **(extra or {})}  # a Python imports nothing from the working directory
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            env=environment,
            timeout=most_seconds,
        )
    except subprocess.TimeoutExpired:
        raise HpcrlError(f"{failed or f'{name} failed'}: it did not end in {most_seconds:g} seconds") from None
    except FileNotFoundError:
        raise HpcrlError(f"{words[0]}: no such command: load the site's environment manager") from None
    if done.returncode != 0:
        where = ""
        if log is not None:
            log.write_text(done.stdout + done.stderr)
            where = f" (full output: {log})"
        if mismatch := _MISMATCH.search(done.stderr):
            pin, digest = (mismatch[1], mismatch[2]) if mismatch[1] else (mismatch[3], mismatch[4])
            raise HashMismatch(
                f"{failed or f'{name} failed'}: {pin}: the package index has a file that envs/hashes/ does not allow (its SHA-256 "
                f"is {digest}): it was not installed; find out who changed it before you allow it there"
            )
        raise HpcrlError(f"{failed or f'{name} failed'}: {gist(done.stderr or done.stdout)}{where}")
    return done.stdout


def gist(text: str) -> str:
    """Return what hpcrl itself said, or the first errors of the compiler or CMake, or else the last non-empty lines."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if said := [line.removeprefix(_OWN) for line in lines if line.startswith(_OWN)]:
        return said[-1]
    errors = [" ".join(lines[number : number + 2]) for number, line in enumerate(lines) if _ERROR.search(line)]
    return " / ".join(errors[:2] or lines[-3:]) or "no output"
