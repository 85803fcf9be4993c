"""The one door of the environment builders to other programs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcrl.errors import HpcrlError

_PRIVATE = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


def call(
    arguments: Sequence[str | Path],
    setup: Sequence[str] = (),
    extra: Mapping[str, str] | None = None,
    failed: str | None = None,
) -> str:
    """Run a command, after the site's setup lines, without this Python's own variables; return its standard output.

    Raises:
        HpcrlError: it is not there, or fails; `failed` says what that means, and the command's last lines follow.
    """
    words = [str(each) for each in arguments]
    name = Path(words[0]).name
    if setup:
        words = ["bash", "-c", "\n".join([*setup, 'exec "$@"']), "bash", *words]
    environment = {key: value for key, value in os.environ.items() if key not in _PRIVATE} | dict(extra or {})
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    except FileNotFoundError:
        raise HpcrlError(f"{words[0]}: no such command: is the site's environment manager loaded?") from None
    if done.returncode != 0:
        raise HpcrlError(f"{failed or f'{name} failed'}: {tail(done.stderr or done.stdout)}")
    return done.stdout


def tail(text: str) -> str:
    """Return the last lines that say something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-3:]) or "it said nothing"
