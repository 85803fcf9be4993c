"""Check that an existing environment of a study is on this machine and has the needed modules."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from hpcrl.environments.commands import call
from hpcrl.errors import HpcrlError
from hpcrl.formats.plan import WORKER
from hpcrl.formats.worker import worker_zip
from hpcrl.surroundings import Surroundings, enter, expanded, fault

_NEWER = "import sys; sys.exit(0 if sys.version_info >= (3, 11) else 'got Python %d.%d' % sys.version_info[:2])"


def check_standing(how: Surroundings, frameworks: Sequence[str] = (), setup: Sequence[str] = ()) -> str:
    """Return the facts of the environment: for built-in training (with `frameworks`) the versions of its modules.

    Raises:
        HpcrlError: the environment or a module is missing on this machine; the message names it.
    """
    if wrong := fault(how):
        raise HpcrlError(wrong)
    if frameworks and how.path:
        return f"{expanded(how.path)}: {check_training(expanded(how.path), frameworks, setup)}"
    enter(how, ["true"], os.environ, Path.cwd())
    return (
        f"{how}: {'is there' if how.kind != 'modules' else 'can be loaded'}"
        if how.kind != "none"
        else "none: nothing to check"
    )


def check_training(path: Path, frameworks: Sequence[str] = (), setup: Sequence[str] = ()) -> str:
    """Check that hpcrl's process and some frameworks can run in an environment, and return their versions.

    Raises:
        HpcrlError: Python or a module is missing or too old.
    """
    python = path / "bin/python"
    if not os.access(python, os.X_OK):
        raise HpcrlError(
            f"environment: {path}: expected a venv or conda environment, got a directory without bin/python"
        )
    call([python, "-c", _NEWER], setup, failed=f"environment: {path}: expected Python 3.11 or newer")
    with TemporaryDirectory(prefix="hpcrl-check-") as place:
        worker = Path(place) / WORKER
        worker.write_bytes(worker_zip())
        words: list[str | Path] = [python, "-m", "hpcrl.run.standing", *frameworks]
        return call(words, setup, {"PYTHONPATH": str(worker)}, failed="environment").strip()
